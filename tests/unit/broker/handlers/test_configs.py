"""Settings: the one that counts first, with its source; changes are all or none for a resource."""

from pathlib import Path

from fakes.handled import Handled, handle
from ottla.config import TopicConfig
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
FOR_TOPIC, FOR_BROKER, FOR_ALL_BROKERS, DEFAULT = 1, 2, 3, 5
FOR_GROUP = 8


async def described(handled: Handled, kind: int, name: str, *keys: str) -> dict[str, object]:
    """Value and source of settings; the error for a resource that is refused."""
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource])
    (result,) = (await handled.call(ApiKey.DESCRIBE_CONFIGS, request, 4)).results
    if result.error_code:
        return {"error": result.error_code}
    return {config.name: (config.value, config.config_source) for config in result.configs}


async def altered(handled: Handled, name: str, operation: int, value: str | None) -> int:
    config = IncrementalAlterableConfig(
        name="retention.ms", config_operation=operation, value=value
    )
    resource = IncrementalAlterConfigsResource(
        resource_type=TOPIC, resource_name=name, configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = await handled.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, 1)
    code: int = response.responses[0].error_code
    return code


async def synonyms(handled: Handled, kind: int, name: str, key: str) -> list[object]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=[key]
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = (await handled.call(ApiKey.DESCRIBE_CONFIGS, request, 4)).results
    (config,) = result.configs
    return [(one.name, one.value, one.source) for one in config.synonyms]


def test_synonyms_are_in_order_and_a_brokers_have_its_own_name(tmp_path: Path) -> None:
    """As Kafka has it: seen with a broker of it."""

    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        default = ("log.retention.ms", str(TopicConfig().retention_ms), DEFAULT)
        assert await synonyms(handled, TOPIC, "t", "retention.ms") == [default]
        assert await altered(handled, "t", 0, "1000") == 0
        for broker, value in (("", "3000"), ("0", "2000")):
            config = IncrementalAlterableConfig(
                name="log.retention.ms", config_operation=0, value=value
            )
            resource = IncrementalAlterConfigsResource(
                resource_type=BROKER, resource_name=broker, configs=[config]
            )
            request = IncrementalAlterConfigsRequest(resources=[resource])
            response = await handled.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, 1)
            assert response.responses[0].error_code == 0
        of_broker = [
            ("log.retention.ms", "2000", FOR_BROKER),
            ("log.retention.ms", "3000", FOR_ALL_BROKERS),
            default,
        ]
        found = await synonyms(handled, TOPIC, "t", "retention.ms")
        assert found == [("retention.ms", "1000", FOR_TOPIC), *of_broker]
        assert await synonyms(handled, BROKER, "0", "log.retention.ms") == of_broker
        assert await synonyms(handled, BROKER, "", "log.retention.ms") == of_broker[1:2]
        # No broker setting is its default, so there is nothing else to name.
        assert await synonyms(handled, TOPIC, "t", "remote.storage.enable") == []
        (shown,) = (await described(handled, TOPIC, "t", "remote.storage.enable")).values()
        assert shown == ("false", DEFAULT)

    handle(tmp_path, scenario)


def test_settings_of_a_group_are_shown_with_those_of_the_broker_behind(tmp_path: Path) -> None:
    session, broker_session = "consumer.session.timeout.ms", "group.consumer.session.timeout.ms"

    async def scenario(handled: Handled) -> None:
        default = (broker_session, "45000", DEFAULT)
        assert await synonyms(handled, GROUP, "any", session) == [default]
        config = IncrementalAlterableConfig(name=session, config_operation=0, value="50000")
        resource = IncrementalAlterConfigsResource(
            resource_type=GROUP, resource_name="any", configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = await handled.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, 1)
        assert response.responses[0].error_code == 0
        found = await synonyms(handled, GROUP, "any", session)
        assert found == [(session, "50000", FOR_GROUP), default]
        resource.resource_type, resource.resource_name = BROKER, ""
        config.name, config.value = broker_session, "46000"
        response = await handled.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, 1)
        assert response.responses[0].error_code == 0
        of_brokers = (broker_session, "46000", FOR_ALL_BROKERS)
        found = await synonyms(handled, GROUP, "any", session)
        assert found == [(session, "50000", FOR_GROUP), of_brokers, default]
        other = await described(handled, GROUP, "other", session)
        assert other == {session: ("46000", FOR_ALL_BROKERS)}
        reset = "share.auto.offset.reset"
        assert await synonyms(handled, GROUP, "any", reset) == [(reset, "latest", DEFAULT)]
        nobody = await described(handled, GROUP, "")
        assert nobody == {"error": ErrorCode.INVALID_REQUEST}
        listed = ListConfigResourcesRequest(resource_types=[GROUP])
        found = (await handled.call(ApiKey.LIST_CONFIG_RESOURCES, listed, 1)).config_resources
        assert [(one.resource_name, one.resource_type) for one in found] == [("any", GROUP)]

    handle(tmp_path, scenario)


def test_a_type_of_resource_that_kafka_does_not_know_is_refused(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        request = ListConfigResourcesRequest(resource_types=[TOPIC, 77])
        response = await handled.call(ApiKey.LIST_CONFIG_RESOURCES, request, 1)
        assert (response.error_code, response.config_resources) == (35, [])

    handle(tmp_path, scenario)


def test_a_setting_shows_its_value_and_its_source(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        (before,) = (await described(handled, TOPIC, "t", "retention.ms")).values()
        assert before == (str(TopicConfig().retention_ms), DEFAULT)
        assert await altered(handled, "t", 0, "1000") == 0
        (after,) = (await described(handled, TOPIC, "t", "retention.ms")).values()
        assert after == ("1000", FOR_TOPIC)
        assert await altered(handled, "t", 1, None) == 0
        (deleted,) = (await described(handled, TOPIC, "t", "retention.ms")).values()
        assert deleted == before

    handle(tmp_path, scenario)


def test_resources_that_have_no_settings_are_refused(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        unknown = {"error": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await described(handled, TOPIC, "gone") == unknown
        for kind, name in ((LOGGER, "ottla"), (BROKER, "7")):
            assert await described(handled, kind, name) == {"error": ErrorCode.INVALID_REQUEST}
        assert await altered(handled, "t", 9, "1") == ErrorCode.INVALID_REQUEST

    handle(tmp_path, scenario)


def test_a_broker_shows_its_id_as_read_only(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        settings = await described(handled, BROKER, "0", "node.id", "advertised.listeners")
        assert settings["node.id"] == ("0", 4)
        assert settings["advertised.listeners"] == (f"PLAINTEXT://{handled.broker.address}", 4)

    handle(tmp_path, scenario)


def test_settings_that_alter_configs_does_not_name_return_to_their_defaults(
    tmp_path: Path,
) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        await altered(handled, "t", 0, "1000")
        config = AlterableConfig(name="segment.bytes", value="1048576")
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
        request = AlterConfigsRequest(resources=[resource])
        response = await handled.call(ApiKey.ALTER_CONFIGS, request, 2)
        assert response.responses[0].error_code == 0
        assert handled.services.state.image.topics["t"].config == {"segment.bytes": "1048576"}

    handle(tmp_path, scenario)


def test_a_resource_that_is_named_twice_is_changed_by_neither(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        config = AlterableConfig(name="retention.ms", value="1000")
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
        request = AlterConfigsRequest(resources=[resource, resource])
        response = await handled.call(ApiKey.ALTER_CONFIGS, request, 2)
        codes = {result.error_code for result in response.responses}
        assert codes == {ErrorCode.INVALID_REQUEST}
        assert handled.services.state.image.topics["t"].config == {}

    handle(tmp_path, scenario)


def test_resources_are_listed_by_type(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        for types, names in (([], {"t", "0"}), ([TOPIC], {"t"}), ([BROKER], {"0"})):
            request = ListConfigResourcesRequest(resource_types=types)
            response = await handled.call(ApiKey.LIST_CONFIG_RESOURCES, request, 1)
            assert {one.resource_name for one in response.config_resources} == names

    handle(tmp_path, scenario)
