"""The settings that a command line names, checked against those that a resource has."""

from collections.abc import Sequence

from ottla.client.client import Client
from ottla.client.configs import ALL_BROKERS, Resource, ShownSetting, settings_of
from ottla.errors import UsageRefused, did_you_mean


def choose_settings(
    shown: Sequence[ShownSetting], names: Sequence[str], resource: Resource
) -> list[ShownSetting]:
    """The settings with these names, or all by name; one that does not exist is refused."""
    known = {item.name: item for item in sorted(shown, key=lambda item: item.name)}
    for name in names:
        if name not in known:
            raise UsageRefused(f"{resource} has no setting {name}{did_you_mean(name, known)}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())


async def check_removed(client: Client, resource: Resource, names: Sequence[str]) -> None:
    """Refuse names that the resource does not have: a broker ignores those that are removed."""
    if names and resource.name != ALL_BROKERS:  # which shows only what was set
        choose_settings((await settings_of(client, [resource]))[resource], names, resource)
