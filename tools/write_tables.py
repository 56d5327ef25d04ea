"""Write the tables in docs/ that must agree with the code.

    python tools/write_tables.py            write them
    python tools/write_tables.py --check    say which are out of date; status 1 if one is

A table stands between `<!-- table:NAME -->` and `<!-- end -->`. Settings come from `ottla.config`,
APIs and metrics from a broker that is started for this, what passes in `make compat` from its list.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from compat import results
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.client.client import Client
from ottla.client.connection import Connection
from ottla.client.group_offsets import commit_offsets
from ottla.config import BrokerConfig, GroupConfig, Setting, TopicConfig, format_value, settings_of
from ottla.model import Endpoint, Offset, TopicPartition
from ottla.protocol.api import APIS, ApiKey
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.batch import Record, build_batch

DOCS: Final = Path(__file__).parent.parent / "docs"
_TABLE: Final = re.compile(r"(<!-- table:([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FAMILY: Final = re.compile(r"# HELP (\S+) (.*)\n# TYPE \S+ (\S+)")
_LOOPBACK: Final = Endpoint("127.0.0.1", 0)
_PRODUCE_SERVED_MIN: Final = APIS[ApiKey.PRODUCE].versions[0]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a running broker says of itself."""

    apis: list[ApiVersion]
    metrics: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if needed")
    is_check = parser.parse_args().check
    tables = make_tables(asyncio.run(observe()))
    stale = [page for page in sorted(DOCS.glob("*.md")) if renew(page.read_text(), tables)[1]]
    for page in stale:
        if is_check:
            print(f"{page.name} is out of date: run `python tools/write_tables.py`")
        else:
            page.write_text(renew(page.read_text(), tables)[0])
            print(f"{page.name} written")
    return int(is_check and bool(stale))


def make_tables(observed: Observed) -> dict[str, str]:
    """Every table by its name."""
    return {
        "topic-settings": _table(
            [
                "Setting",
                "Broker's name for its default",
                "Default",
                "Allowed",
                "Default changed while it runs",
                "What it does",
            ],
            _topic_settings(),
        ),
        "broker-settings": _table(
            ["Setting", "Default", "Allowed", "Changed while it runs", "What it does"],
            _broker_settings(),
        ),
        "group-settings": _table(
            ["Setting", "Broker's name for its default", "Default", "Allowed", "What it does"],
            _group_settings(),
        ),
        "apis": _table(["Key", "API", "Versions"], _apis(observed.apis)),
        "metrics": _table(["Metric", "Kind", "Labels", "What it is"], _metrics(observed.metrics)),
        "compat": _table(results.TABLE_COLUMNS, results.rows(results.read())),
        "compat-differences": _table(
            results.DIFFERENCE_COLUMNS, results.differences(results.read())
        ),
    }


def renew(page: str, tables: dict[str, str]) -> tuple[str, bool]:
    """The page with its tables as they should be, and whether that is a change."""
    fresh = _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]]}{found[3]}", page)
    return fresh, fresh != page


async def observe() -> Observed:
    """Start a broker, use it so that every metric has samples, and ask it."""
    with tempfile.TemporaryDirectory() as directory:
        options = ServeOptions(data=Path(directory), listen=_LOOPBACK, metrics=_LOOPBACK)
        broker = await Broker.start(options, Environment())
        try:
            connection = await Connection.open(broker.address)
            answer = await connection.send(ApiVersionsRequest(), ApiVersionsResponse, version_max=2)
            any_topic = MetadataRequest(topics=[MetadataRequestTopic(name="any")])
            await connection.send(any_topic, MetadataResponse)
            await _write_and_read(connection)
            connection.close()
            async with Client([broker.address]) as client:
                await commit_offsets(client, "any", {TopicPartition("any", 0): Offset(0)})
            assert broker.metrics_address is not None
            return Observed(answer.api_keys, await _scrape(broker.metrics_address))
        finally:
            await broker.stop()


async def _write_and_read(connection: Connection) -> None:
    """Produce a batch, fetch it, and fetch from a partition that does not exist."""
    batch = build_batch([Record(value=b"any")])
    sent = PartitionProduceData(index=0, records=batch)
    produce = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="any", partition_data=[sent])]
    )
    await connection.send(produce, ProduceResponse, version_max=9)
    for partition in (0, 1):
        wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        fetch = FetchRequest(topics=[FetchTopic(topic="any", partitions=[wanted])])
        await connection.send(fetch, FetchResponse, version_max=12)


async def _scrape(endpoint: Endpoint) -> str:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    page = await reader.read()
    writer.close()
    return page.decode().partition("\r\n\r\n")[2]


def _topic_settings() -> Iterator[Sequence[str]]:
    defaults = _defaults(TopicConfig)
    for name, row in settings_of(TopicConfig):
        names = _code(row.name), _code(row.broker_name or "")
        changed = _changed(row) if row.broker_name else ""
        yield *names, defaults[name], row.allowed, changed, row.full_doc


def _broker_settings() -> Iterator[Sequence[str]]:
    defaults = _defaults(BrokerConfig)
    for name, row in settings_of(BrokerConfig):
        yield _code(row.name), defaults[name], row.allowed, _changed(row), row.full_doc


def _group_settings() -> Iterator[Sequence[str]]:
    defaults = _defaults(GroupConfig)
    for name, row in settings_of(GroupConfig):
        is_set = row.broker_name in {one.name for _, one in settings_of(BrokerConfig)}
        default_name = _code(row.broker_name or "") if is_set else ""
        yield _code(row.name), default_name, defaults[name], row.allowed, row.full_doc


def _changed(row: Setting) -> str:
    """Everything can be changed while brokers run: for one of them, or only for all."""
    return "dynamic, all brokers" if row.is_shared else "dynamic, per broker"


def _defaults(config_class: type[TopicConfig | BrokerConfig | GroupConfig]) -> dict[str, str]:
    made = config_class()
    return {item.name: format_value(getattr(made, item.name)) for item in fields(config_class)}


def _apis(listed: Sequence[ApiVersion]) -> Iterator[Sequence[str]]:
    for row in listed:
        key = ApiKey(row.api_key)
        lowest = _PRODUCE_SERVED_MIN if key is ApiKey.PRODUCE else row.min_version
        versions = str(lowest) if lowest == row.max_version else f"{lowest} to {row.max_version}"
        yield str(int(key)), APIS[key].name, versions


def _metrics(page: str) -> Iterator[Sequence[str]]:
    for name, doc, kind in _FAMILY.findall(page):
        labels = re.search(rf"^{name}(?:_bucket)?{{(.*)}} ", page, re.MULTILINE)
        names = re.findall(r'(\w+)="', labels[1]) if labels else []
        yield _code(name), kind, ", ".join(name for name in names if name != "le"), doc


def _table(columns: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.exit(main())
