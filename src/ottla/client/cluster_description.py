"""Requests on the cluster as a whole: its id, its brokers, its features."""

from dataclasses import dataclass

from ottla import __version__
from ottla.client.client import Client
from ottla.client.errors import check
from ottla.model import BrokerId, Endpoint
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker of the cluster."""

    id: BrokerId
    endpoint: Endpoint
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """A feature: the level in force, and the levels that the broker supports."""

    name: str
    level: int
    supported: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster; `controller` is None while there is none."""

    id: str
    controller: BrokerId | None
    brokers: tuple[BrokerDescription, ...]


async def describe_cluster(client: Client) -> ClusterDescription:
    """The cluster with its brokers by id."""
    response = await client.send_to_any(DescribeClusterRequest(), DescribeClusterResponse)
    check(response.error_code, "the cluster", response.error_message)
    brokers = sorted(response.brokers, key=lambda item: item.broker_id)
    return ClusterDescription(
        id=response.cluster_id,
        controller=None if response.controller_id < 0 else BrokerId(response.controller_id),
        brokers=tuple(
            BrokerDescription(
                id=BrokerId(item.broker_id),
                endpoint=Endpoint(item.host, item.port),
                rack=item.rack,
            )
            for item in brokers
        ),
    )


async def features_of(client: Client) -> list[FeatureDescription]:
    """The features of a broker by name; level 0 if the cluster has not finalized it."""
    request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
    response = await client.send_to_any(request, ApiVersionsResponse)
    check(response.error_code, "the broker")
    levels = {item.name: item.max_version_level for item in response.finalized_features}
    return [
        FeatureDescription(
            name=item.name,
            level=levels.get(item.name, 0),
            supported=(item.min_version, item.max_version),
        )
        for item in sorted(response.supported_features, key=lambda item: item.name)
    ]
