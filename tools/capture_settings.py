"""Record the settings that Apache Kafka knows and the values that they take.

    python -m compat.peers kafka            once, for the jars
    python -m tools.capture_settings

A broker of Apache Kafka describes a topic and a group. Then each of their settings is tried with
every text in `VALUES`, without being changed. The result is tests/golden/settings.json.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from compat.apache import ApacheBroker
from ottla.client.connection import Connection
from ottla.errors import ErrorCode
from ottla.model import Endpoint
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tools.capture import GOLDEN

SETTINGS: Final = GOLDEN / "settings.json"
RESOURCES: Final = {"topic": 2, "group": 32}
_NAME: Final = "any"
_NUMBERS: Final = (
    *(-(2**63), -131_073, -131_072, -3, -2, -1, 0, 1, 2, 3, 4, 5, 9, 10, 11, 17, 18, 22, 23),
    *(99, 100, 1000, 1024, 2000, 4000, 5000, 10_000, 15_000, 15_001, 30_000, 45_000, 60_000),
    *(60_001, 1 << 20, 2**31 - 1, 2**31, 2**63 - 1, 2**63),
)
_TEXTS: Final = (
    *("", "true", "false", "TRUE", "maybe", "0.5", "1.1", "nan", "x", "*", "0:1", "0:1,1:2", "0:x"),
    *("*,0:1", "compact", "delete", "compact,delete", "delete, compact", "burn", "gzip", "zstd"),
    *("producer", "CreateTime", "LogAppendTime", "latest", "earliest", "by_duration:PT1H"),
    *("by_duration:P1DT2H3M4.5S", "by_duration:P", "by_duration:-PT1H", "by_duration:x", "none"),
    *("by_duration:", "by_duration:PT0S", "read_committed", "read_uncommitted", "READ_COMMITTED"),
)
VALUES: Final = (*map(str, _NUMBERS), *_TEXTS)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, ApacheBroker(Path(directory) / "a") as apache:
        found = asyncio.run(_record(Endpoint.parse(apache.address)))
    SETTINGS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{SETTINGS} written")


async def _record(address: Endpoint) -> dict[str, Any]:
    connection = await Connection.open(address)
    topic = CreatableTopic(name=_NAME, num_partitions=1, replication_factor=1)
    await connection.send(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
    found: dict[str, Any] = {"tried": VALUES}
    for scope, resource_type in RESOURCES.items():
        rows = await _described(connection, resource_type)
        found[scope] = {
            row.name: {
                "type": row.config_type,
                "default": row.synonyms[-1].value if row.synonyms else row.value,
                "broker_names": sorted({synonym.name for synonym in row.synonyms}),
                "accepted": await _accepted(connection, resource_type, row.name, VALUES),
            }
            for row in rows
            if not row.name.startswith("internal.")
        }
    connection.close()
    return found


async def _described(
    connection: Connection, resource_type: int
) -> list[DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=_NAME, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = (await connection.send(request, DescribeConfigsResponse)).results
    assert result.error_code == ErrorCode.NONE, result
    return result.configs


async def _accepted(
    connection: Connection, resource_type: int, name: str, values: Iterable[str]
) -> list[str]:
    """The values that Kafka takes; all others it refuses with INVALID_CONFIG."""
    accepted = []
    for value in values:
        change = IncrementalAlterableConfig(name=name, config_operation=0, value=value)
        resource = IncrementalAlterConfigsResource(
            resource_type=resource_type, resource_name=_NAME, configs=[change]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
        (response,) = (await connection.send(request, IncrementalAlterConfigsResponse)).responses
        assert response.error_code in {ErrorCode.NONE, ErrorCode.INVALID_CONFIG}, response
        if not response.error_code:
            accepted.append(value)
    return accepted


if __name__ == "__main__":
    main()
