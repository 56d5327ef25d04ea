"""Options that say how the cluster is reached: the same for readers and writers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.model import BrokerId, Endpoint
from ottla.spark.option_reader import OptionReader, OptionRefused, parsed

CLIENT_ID: Final = "ottla-spark"
TIMEOUT_MS: Final = 60_000
_PLAIN_SECURITY: Final = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The addresses of the cluster; readers and writers with equal ones share connections."""

    bootstrap: tuple[Endpoint, ...]
    addresses: tuple[tuple[BrokerId, Endpoint], ...] = ()
    client_id: str = CLIENT_ID
    timeout_ms: int = TIMEOUT_MS


def parse_broker_options(raw: Mapping[str, str]) -> BrokerOptions:
    """Parse the options that say how the cluster is reached."""
    options = OptionReader(raw, ())
    servers = options.text("kafka.bootstrap.servers")
    if not servers:
        raise OptionRefused("kafka.bootstrap.servers is missing: say HOST:PORT of a broker")
    protocol = options.text("kafka.security.protocol") or _PLAIN_SECURITY
    if protocol.upper() != _PLAIN_SECURITY:
        raise OptionRefused(
            f"kafka.security.protocol={protocol} is not supported yet: only {_PLAIN_SECURITY} is"
        )
    return BrokerOptions(
        bootstrap=tuple(
            parsed("kafka.bootstrap.servers", Endpoint.parse, part.strip())
            for part in servers.split(",")
        ),
        addresses=_addresses(options),
        client_id=options.text("kafka.client.id") or CLIENT_ID,
        timeout_ms=options.positive("kafka.default.api.timeout.ms") or TIMEOUT_MS,
    )


def _addresses(options: OptionReader) -> tuple[tuple[BrokerId, Endpoint], ...]:
    if options.text("brokerAddressMap") is None:
        return ()
    found = list[tuple[BrokerId, Endpoint]]()
    for number, address in options.json_object("brokerAddressMap").items():
        if not number.isdigit():
            raise OptionRefused(f"brokerAddressMap: {number!r} is not the id of a broker")
        found.append(
            (BrokerId(int(number)), parsed("brokerAddressMap", Endpoint.parse, str(address)))
        )
    return tuple(sorted(found))
