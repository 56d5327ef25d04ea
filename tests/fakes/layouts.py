"""Every message in every version that we can read and write."""

from typing import Any, NamedTuple

from ottla.protocol.api import APIS, Api
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from ottla.protocol.schema import message_versions


class Layout(NamedTuple):
    """One message class in one version."""

    message_class: type[Any]
    version: int

    def __str__(self) -> str:
        return f"{self.message_class.__name__} v{self.version}"


def layouts_of(message_class: type[Any]) -> list[Layout]:
    return [Layout(message_class, version) for version in message_versions(message_class).valid]


def api_layouts(api: Api) -> list[Layout]:
    """Request and answer of one API in every version."""
    return layouts_of(api.request_class) + layouts_of(api.response_class)


def all_layouts() -> list[Layout]:
    embedded = layouts_of(ConsumerProtocolSubscription) + layouts_of(ConsumerProtocolAssignment)
    return [layout for api in APIS.values() for layout in api_layouts(api)] + embedded
