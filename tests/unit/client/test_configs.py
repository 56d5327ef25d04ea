"""Requests on settings: what is sent, to which broker, and what its response means."""

import pytest

from fakes.scripted_cluster import ScriptedCluster
from ottla.client.client import Client
from ottla.client.configs import (
    ALL_BROKERS,
    Resource,
    ResourceKind,
    ShownSetting,
    Source,
    alter_settings,
    settings_of,
    topic_resource,
)
from ottla.client.errors import NoSuchTopic, Refused
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

REFUSED = ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_CONFIG])
def test_settings_are_set_and_removed_in_one_request(code: ErrorCode) -> None:
    """One request is carried out as a whole, or not at all."""
    result = AlterConfigsResourceResponse(
        resource_name="orders", error_code=code, error_message="retention.ms: not a number"
    )
    response = IncrementalAlterConfigsResponse(responses=[result])
    cluster = ScriptedCluster({}, {ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda request: response})

    async def scenario(client: Client) -> None:
        change = alter_settings(
            client, topic_resource("orders"), assign={"retention.ms": "5"}, remove=["segment.bytes"]
        )
        if code is ErrorCode.NONE:
            await change
        else:
            with pytest.raises(Refused, match=r"topic orders: retention\.ms: not a number"):
                await change

    cluster.run(scenario)
    (request,) = cluster.asked(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    assert isinstance(request, IncrementalAlterConfigsRequest)
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name) == (2, "orders")
    assert [(one.name, one.config_operation, one.value) for one in resource.configs] == [
        ("retention.ms", 0, "5"),
        ("segment.bytes", 1, None),
    ]


def described(request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Two settings of each topic: one of its own, and one that is the broker's."""
    settings = [
        DescribeConfigsResourceResult(name="retention.ms", value="5", config_source=1),
        DescribeConfigsResourceResult(name="segment.bytes", value=None, config_source=5),
    ]
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                resource_name=one.resource_name,
                configs=settings,
                error_code=ErrorCode.NONE if one.resource_name != "gone" else REFUSED,
            )
            for one in request.resources
        ]
    )


def test_settings_of_topics_say_which_were_set_on_the_topic_itself() -> None:
    cluster = ScriptedCluster({}, {ApiKey.DESCRIBE_CONFIGS: described})

    async def scenario(client: Client) -> None:
        both = [
            ShownSetting(name="retention.ms", value="5", source=Source.TOPIC, is_read_only=False),
            ShownSetting(
                name="segment.bytes", value=None, source=Source.DEFAULT, is_read_only=False
            ),
        ]
        a, b, gone = map(topic_resource, ["a", "b", "gone"])
        assert await settings_of(client, [a, b]) == {a: both, b: both}
        with pytest.raises(Refused, match="topic gone: "):
            await settings_of(client, [a, gone])

    cluster.run(scenario)
    request, _ = cluster.asked(ApiKey.DESCRIBE_CONFIGS)
    assert isinstance(request, DescribeConfigsRequest)
    assert [
        (one.resource_type, one.resource_name, one.configuration_keys) for one in request.resources
    ] == [(2, "a", None), (2, "b", None)]


@pytest.mark.parametrize(
    ("resource", "sent", "broker"),
    [
        (Resource(ResourceKind.TOPIC, "orders"), (2, "orders"), 0),
        (Resource(ResourceKind.BROKER, ALL_BROKERS), (4, ""), 0),
        (Resource(ResourceKind.BROKER, "1"), (4, "1"), 1),
        (Resource(ResourceKind.GROUP, "billing"), (32, "billing"), 0),
    ],
    ids=str,
)
def test_a_resource_is_sent_by_its_type_to_the_broker_that_knows_it(
    resource: Resource, sent: tuple[int, str], broker: int
) -> None:
    altered = IncrementalAlterConfigsResponse(responses=[AlterConfigsResourceResponse()])
    scripts = {
        ApiKey.DESCRIBE_CONFIGS: described,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda request: altered,
    }
    cluster = ScriptedCluster({}, scripts, broker_count=2)

    async def scenario(client: Client) -> None:
        await settings_of(client, [resource])
        await alter_settings(client, resource, assign={"a": "1"}, remove=["b"])

    cluster.run(scenario)
    (shown,) = cluster.asked(ApiKey.DESCRIBE_CONFIGS, broker)
    assert isinstance(shown, DescribeConfigsRequest)
    assert (shown.resources[0].resource_type, shown.resources[0].resource_name) == sent
    (changed,) = cluster.asked(ApiKey.INCREMENTAL_ALTER_CONFIGS, broker)
    assert isinstance(changed, IncrementalAlterConfigsRequest)
    assert (changed.resources[0].resource_type, changed.resources[0].resource_name) == sent


def test_a_topic_that_does_not_exist_is_an_error_of_its_own() -> None:
    missing = DescribeConfigsResult(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    response = DescribeConfigsResponse(results=[missing])
    cluster = ScriptedCluster({}, {ApiKey.DESCRIBE_CONFIGS: lambda request: response})

    async def scenario(client: Client) -> None:
        with pytest.raises(NoSuchTopic, match="topic gone: it does not exist"):
            await settings_of(client, [topic_resource("gone")])

    cluster.run(scenario)


def test_a_secret_is_not_shown_and_an_unknown_source_is_no_defect() -> None:
    secret = DescribeConfigsResourceResult(
        name="password", value="secret", is_sensitive=True, config_source=77, read_only=True
    )
    response = DescribeConfigsResponse(results=[DescribeConfigsResult(configs=[secret])])
    cluster = ScriptedCluster({}, {ApiKey.DESCRIBE_CONFIGS: lambda request: response})

    async def scenario(client: Client) -> None:
        topic = topic_resource("orders")
        (shown,) = (await settings_of(client, [topic]))[topic]
        assert shown == ShownSetting(
            name="password", value=None, source=Source.UNKNOWN, is_read_only=True
        )

    cluster.run(scenario)
