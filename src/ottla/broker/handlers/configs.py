"""DescribeConfigs (32) 1-4, AlterConfigs (33) 0-2, IncrementalAlterConfigs (44) 0-1,
ListConfigResources (74) 0-1.

Topics, groups, all brokers together (the broker resource with an empty name), and single ones, as
far as brokers may differ. Not done: loggers and client metrics: INVALID_REQUEST.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ottla.broker import slices
from ottla.broker.metadata_changes import MetadataChanges
from ottla.broker.services import RequestContext, Services
from ottla.cluster.controller.configs import (
    ConfigEdit,
    EditKind,
    alter_broker_config,
    alter_group_config,
    alter_topic_config,
    replace_broker_config,
    replace_group_config,
    replace_topic_config,
)
from ottla.cluster.controller.decision import Decision
from ottla.cluster.image import ClusterImage
from ottla.config import (
    BrokerConfig,
    GroupConfig,
    Kind,
    Setting,
    TopicConfig,
    format_value,
    settings_of,
)
from ottla.errors import ApiError, ErrorCode, InvalidRequest, UnknownTopicOrPartition
from ottla.model import BrokerId
from ottla.protocol.codec import Steps
from ottla.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TOPIC: Final = 2
_BROKER: Final = 4
_GROUP: Final = 32
_SERVED_TYPES: Final = frozenset({_TOPIC, _BROKER, _GROUP})
_KNOWN_TYPES: Final = _SERVED_TYPES | {8, 16}  # loggers and client metrics
_NOT_SERVED: Final = "only topics (2), brokers (4) and groups (32) have settings here"
_ALL_BROKERS: Final = ""

# Where a value comes from, as on the wire.
_SET_FOR_TOPIC: Final = 1
_SET_FOR_BROKER: Final = 2
_SET_FOR_ALL_BROKERS: Final = 3
_SET_AT_START: Final = 4
_DEFAULT: Final = 5
_SET_FOR_GROUP: Final = 8

_TYPES: Final = {
    Kind.BOOLEAN: 1,
    Kind.STRING: 2,
    Kind.INT: 3,
    Kind.LONG: 5,
    Kind.DOUBLE: 6,
    Kind.LIST: 7,
}

_NODE_ID: Final = Setting("node.id", Kind.INT, "The id of this broker.", "0 or more", int)
_ADVERTISED: Final = Setting(
    "advertised.listeners", Kind.LIST, "The address that clients connect to.", "HOST:PORT", str
)
_READ_ONLY: Final = (_NODE_ID, _ADVERTISED)
_TOPIC_DEFAULTS: Final = TopicConfig()
_GROUP_DEFAULTS: Final = GroupConfig()
_BROKER_FIELDS: Final = {row.name: field for field, row in settings_of(BrokerConfig)}
_SETTING_UNITS: Final = 3  # of work for each setting that is shown

Decide = Callable[[ClusterImage], Decision[None]]
Resource = TypeVar("Resource", AlterConfigsResource, IncrementalAlterConfigsResource)


class _DescribedSetting(NamedTuple):
    """A setting with the values that are set for it, the one that counts first.

    A topic's are followed by those of the broker's setting that is its default, under that name.
    """

    row: Setting
    name: str
    default: str
    values: list[tuple[str, str, int]]  # (name, value, source)


class DescribeConfigs:
    def __init__(self, services: Services) -> None:
        self._state = services.state
        self._settings = services.settings
        self._broker_id = services.node_id

    def __call__(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse | Coroutine[Any, Any, DescribeConfigsResponse]:
        return slices.start(self._describe_all(request))

    def _describe_all(self, request: DescribeConfigsRequest) -> Steps[DescribeConfigsResponse]:
        response = DescribeConfigsResponse()
        for resource in _once(request.resources):
            result = self._describe(resource, request)
            response.results.append(result)
            yield 10 + _SETTING_UNITS * len(result.configs)
        return response

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        keys = resource.configuration_keys
        requested = None if keys is None else frozenset(keys)
        try:
            result.configs = [
                _describe_setting(setting, request)
                for setting in self._settings_of(resource)
                if requested is None or setting.name in requested
            ]
        except ApiError as refused:
            result.error_code, result.error_message = refused.code, str(refused)
        return result

    def _settings_of(self, resource: DescribeConfigsResource) -> Iterable[_DescribedSetting]:
        name = resource.resource_name
        if resource.resource_type == _TOPIC:
            return list(self._topic_settings(name))
        if resource.resource_type == _BROKER:
            if name not in {_ALL_BROKERS, str(self._broker_id)}:
                raise InvalidRequest(
                    f"this is broker {self._broker_id}: ask broker {name} for its settings"
                )
            if name == _ALL_BROKERS:
                return self._shared_settings()
            return [*self._identity(), *self._broker_settings()]
        if resource.resource_type == _GROUP:
            return list(self._group_settings(name))
        raise InvalidRequest(_NOT_SERVED)

    def _topic_settings(self, name: str) -> Iterator[_DescribedSetting]:
        topic = self._state.image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        for field, row in settings_of(TopicConfig):
            values = []
            if row.name in topic.config:
                values.append((row.name, topic.config[row.name], _SET_FOR_TOPIC))
            if row.broker_name is not None:
                values += self._broker_values(row.broker_name, _topic_reader(field))
            default = format_value(getattr(_TOPIC_DEFAULTS, field))
            yield _DescribedSetting(row, row.name, default, values)

    def _group_settings(self, name: str) -> Iterator[_DescribedSetting]:
        if not name:
            raise InvalidRequest("name a group: there are no settings of all groups")
        own = self._state.image.group_configs.get(name, {})
        for field, row in settings_of(GroupConfig):
            default = format_value(getattr(_GROUP_DEFAULTS, field))
            values = [(row.name, own[row.name], _SET_FOR_GROUP)] if row.name in own else []
            broker_name = row.broker_name or row.name
            if broker_name in _BROKER_FIELDS:
                read = _broker_reader(_BROKER_FIELDS[broker_name])
                values += self._broker_values(broker_name, read)
            else:
                values.append((broker_name, default, _DEFAULT))
            yield _DescribedSetting(row, row.name, default, values)

    def _identity(self) -> Iterator[_DescribedSetting]:
        """Settings that a broker is started with and that cannot change; admin tools read them."""
        values = [(_NODE_ID, str(self._broker_id))]
        broker = self._state.image.brokers.get(self._broker_id)
        if broker is not None:
            values.append((_ADVERTISED, f"PLAINTEXT://{broker.endpoint}"))
        for row, value in values:
            yield _DescribedSetting(row, row.name, value, [(row.name, value, _SET_AT_START)])

    def _broker_settings(self) -> Iterator[_DescribedSetting]:
        for field, row in settings_of(BrokerConfig):
            values = self._broker_values(row.name, _broker_reader(field))
            yield _DescribedSetting(row, row.name, values[-1][1], values)
        for field, row in settings_of(TopicConfig):
            if row.broker_name is not None:
                values = self._broker_values(row.broker_name, _topic_reader(field))
                yield _DescribedSetting(row, row.broker_name, values[-1][1], values)

    def _shared_settings(self) -> Iterator[_DescribedSetting]:
        """Settings that were changed for all brokers, with that value alone."""
        changed = self._state.image.broker_config
        for setting in self._broker_settings():
            if setting.name in changed:
                values = [value for value in setting.values if value[2] == _SET_FOR_ALL_BROKERS]
                yield setting._replace(values=values)

    def _broker_values(
        self, name: str, read: Callable[[BrokerConfig], Any]
    ) -> list[tuple[str, str, int]]:
        """The values that are set for a broker's setting, and its default at the end."""
        values = []
        own = self._state.image.config_of(self._broker_id)
        if name in own:
            values.append((name, own[name], _SET_FOR_BROKER))
        changed = self._state.image.broker_config
        if name in changed:
            values.append((name, changed[name], _SET_FOR_ALL_BROKERS))
        started, built_in = read(self._settings.started_with), read(BrokerConfig())
        if started != built_in:
            values.append((name, format_value(started), _SET_AT_START))
        values.append((name, format_value(built_in), _DEFAULT))
        return values


def _once(resources: Sequence[DescribeConfigsResource]) -> list[DescribeConfigsResource]:
    """The resources without repetitions: each has one result."""
    return list(
        {
            (r.resource_type, r.resource_name, _key_set(r.configuration_keys)): r for r in resources
        }.values()
    )


def _key_set(keys: Sequence[str] | None) -> frozenset[str] | None:
    return None if keys is None else frozenset(keys)


def _broker_reader(field: str) -> Callable[[BrokerConfig], Any]:
    return lambda config: getattr(config, field)


def _topic_reader(field: str) -> Callable[[BrokerConfig], Any]:
    return lambda config: getattr(config.topic, field)


def _describe_setting(
    setting: _DescribedSetting, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    value, source = setting.default, _DEFAULT
    if setting.values:
        _, value, source = setting.values[0]
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=value,
        read_only=setting.row in _READ_ONLY,
        config_source=source,
        config_type=_TYPES[setting.row.kind],
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in setting.values
        ]
        if request.include_synonyms
        else [],
        documentation=setting.row.full_doc if request.include_documentation else None,
    )


class AlterConfigs:
    """Gives a resource exactly the named settings; the others return to their defaults."""

    def __init__(self, services: Services) -> None:
        self._alteration = _Alteration(services.changes)
        self._settings = services.settings

    async def __call__(
        self, request: AlterConfigsRequest, context: RequestContext
    ) -> AlterConfigsResponse:
        responses = await self._alteration.alter(
            request.resources, self._decide, validate_only=request.validate_only
        )
        return AlterConfigsResponse(responses=responses)

    def _decide(self, resource: AlterConfigsResource) -> Decide:
        config: Mapping[str, str | None] = {c.name: c.value for c in resource.configs}
        if resource.resource_type == _TOPIC:
            return partial(
                replace_topic_config,
                name=resource.resource_name,
                config=config,
                defaults=self._settings.broker,
            )
        if resource.resource_type == _GROUP:
            return partial(
                replace_group_config,
                group_id=resource.resource_name,
                config=config,
                defaults=self._settings.broker,
            )
        return partial(
            replace_broker_config,
            config=config,
            defaults=self._settings.broker,
            broker=_broker_id(resource.resource_name),
        )


class IncrementalAlterConfigs:
    """Changes only the named settings."""

    def __init__(self, services: Services) -> None:
        self._alteration = _Alteration(services.changes)
        self._settings = services.settings

    async def __call__(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        responses = await self._alteration.alter(
            request.resources, self._decide, validate_only=request.validate_only
        )
        return IncrementalAlterConfigsResponse(responses=responses)

    def _decide(self, resource: IncrementalAlterConfigsResource) -> Decide:
        def decide(image: ClusterImage) -> Decision[None]:
            edits = [_edit(c.config_operation, c.name, c.value) for c in resource.configs]
            if resource.resource_type == _TOPIC:
                return alter_topic_config(
                    image, resource.resource_name, edits, self._settings.broker
                )
            if resource.resource_type == _GROUP:
                return alter_group_config(
                    image, resource.resource_name, edits, self._settings.broker
                )
            broker = _broker_id(resource.resource_name)
            return alter_broker_config(image, edits, self._settings.broker, broker)

        return decide


def _broker_id(name: str) -> BrokerId | None:
    """The broker of a resource; None for all of them. Other names are refused before."""
    return BrokerId(int(name)) if name.isdecimal() else None


def _edit(operation: int, name: str, value: str | None) -> ConfigEdit:
    try:
        return ConfigEdit(EditKind(operation), name, value)
    except ValueError:
        raise InvalidRequest(
            f"unknown operation {operation}: 0 sets, 1 deletes, 2 appends, 3 subtracts"
        ) from None


class _Alteration:
    """Commits all changes of one request; each resource gets its own result."""

    def __init__(self, changes: MetadataChanges) -> None:
        self._changes = changes

    async def alter(
        self,
        resources: Sequence[Resource],
        decide: Callable[[Resource], Decide],
        *,
        validate_only: bool,
    ) -> list[AlterConfigsResourceResponse]:
        named = Counter((r.resource_type, r.resource_name) for r in resources)
        decides = (
            _checked(r.resource_type, r.resource_name, decide(r))
            if named[r.resource_type, r.resource_name] == 1
            else _refuse_twice
            for r in resources
        )
        sizes = (len(r.configs) for r in resources)
        outcomes = await self._changes.each(decides, sizes=sizes, validate_only=validate_only)
        return await slices.finish(_altered(resources, outcomes))


def _altered(
    resources: Sequence[Resource], outcomes: Sequence[ApiError | None]
) -> Steps[list[AlterConfigsResourceResponse]]:
    responses = []
    for resource, outcome in zip(resources, outcomes, strict=True):
        responses.append(
            AlterConfigsResourceResponse(
                error_code=outcome.code if isinstance(outcome, ApiError) else 0,
                error_message=str(outcome) if isinstance(outcome, ApiError) else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
        yield 1
    return responses


def _refuse_twice(image: ClusterImage) -> Decision[None]:
    raise InvalidRequest("the resource is named twice: send all changes of it together")


def _checked(kind: int, name: str, decide: Decide) -> Decide:
    def checked(image: ClusterImage) -> Decision[None]:
        if kind not in _SERVED_TYPES:
            raise InvalidRequest(_NOT_SERVED)
        if kind == _BROKER and name != _ALL_BROKERS and not name.isdecimal():
            raise InvalidRequest(
                f"{name!r} is not a broker: name one by its id, or all with an empty name"
            )
        return decide(image)

    return checked


class ListConfigResources:
    def __init__(self, services: Services) -> None:
        self._state = services.state

    def __call__(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse | Coroutine[Any, Any, ListConfigResourcesResponse]:
        return slices.start(self._list(request, context))

    def _list(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> Steps[ListConfigResourcesResponse]:
        image = self._state.image
        if context.version == 0:
            return ListConfigResourcesResponse()  # client metrics only, and there are none
        types = set(request.resource_types) or _SERVED_TYPES
        if not types <= _KNOWN_TYPES:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        found = []
        for name in image.group_configs if _GROUP in types else ():
            found.append(ConfigResource(resource_name=name, resource_type=_GROUP))
            yield 1
        for name in image.topics if _TOPIC in types else ():
            found.append(ConfigResource(resource_name=name, resource_type=_TOPIC))
            yield 1
        if _BROKER in types:
            found += [
                ConfigResource(resource_name=str(broker), resource_type=_BROKER)
                for broker in image.brokers
            ]
        return ListConfigResourcesResponse(config_resources=found)
