"""Requests on settings of topics, brokers and groups: show, set and unset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, TypeVar

from ottla.client.client import Client
from ottla.client.errors import NoSuchTopic, check
from ottla.errors import ErrorCode
from ottla.model import BrokerId
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

ALL_BROKERS: Final = ""  # the name of the broker resource that stands for all of them
_SET, _DELETE = 0, 1

Response = TypeVar("Response")


class ResourceKind(IntEnum):
    """Kinds of resources with settings, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Source(Enum):
    """Where the value of a setting comes from; the numbers are Kafka's."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    START = 4
    DEFAULT = 5
    GROUP = 8
    UNKNOWN = -1

    @classmethod
    def _missing_(cls, value: object) -> "Source":
        return cls.UNKNOWN

    @property
    def text(self) -> str:
        """The source for users: `all brokers` for ALL_BROKERS."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Resource:
    """A topic, a broker, all brokers, or a group."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        if self.kind is ResourceKind.BROKER and self.name == ALL_BROKERS:
            return "all brokers"
        return f"{self.kind.name.lower()} {self.name}"


def topic_resource(name: str) -> Resource:
    """The resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """The value of a setting that is in force; None if it is secret."""

    name: str
    value: str | None
    source: Source
    is_read_only: bool


async def settings_of(
    client: Client, resources: Sequence[Resource]
) -> dict[Resource, list[ShownSetting]]:
    """Every setting of each resource; of a single broker, which alone knows it, only one."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=resource.kind, resource_name=resource.name, configuration_keys=None
            )
            for resource in resources
        ]
    )
    response = await _send(client, resources, request, DescribeConfigsResponse)
    found = dict[Resource, list[ShownSetting]]()
    for resource, result in zip(resources, response.results, strict=True):
        _check(result.error_code, resource, result.error_message)
        found[resource] = _shown(result)
    return found


async def alter_settings(
    client: Client, resource: Resource, *, assign: Mapping[str, str], remove: Sequence[str]
) -> None:
    """Set some settings of a resource and return others to their defaults, all or none."""
    changes = [
        IncrementalAlterableConfig(name=name, config_operation=_SET, value=value)
        for name, value in assign.items()
    ]
    changes += [
        IncrementalAlterableConfig(name=name, config_operation=_DELETE, value=None)
        for name in remove
    ]
    altered = IncrementalAlterConfigsResource(
        resource_type=resource.kind, resource_name=resource.name, configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[altered])
    response = await _send(client, [resource], request, IncrementalAlterConfigsResponse)
    for result in response.responses:
        _check(result.error_code, resource, result.error_message)


async def _send(
    client: Client,
    resources: Sequence[Resource],
    request: object,
    response_class: type[Response],
) -> Response:
    for resource in resources:
        if resource.kind is ResourceKind.BROKER and resource.name != ALL_BROKERS:
            assert len(resources) == 1, f"brokers are asked one by one: {resources}"
            return await client.send_to_broker(
                BrokerId(int(resource.name)), request, response_class
            )
    return await client.send_to_any(request, response_class)


def _check(code: int, resource: Resource, message: str | None) -> None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and resource.kind is ResourceKind.TOPIC:
        raise NoSuchTopic(resource.name)
    if code == ErrorCode.INVALID_REQUEST and resource.kind is ResourceKind.GROUP:
        message = f"the broker refuses settings of groups ({message or 'without a reason'})"
    check(code, str(resource), message)


def _shown(result: DescribeConfigsResult) -> list[ShownSetting]:
    return [
        ShownSetting(
            name=item.name,
            value=None if item.is_sensitive else item.value,
            source=Source(item.config_source),
            is_read_only=item.read_only,
        )
        for item in result.configs
    ]
