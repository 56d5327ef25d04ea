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
    """A broker of the cluster; one that is not alive has no address.

    Only Ottla's brokers say on which machine they are, and whether they are being drained.
    """

    id: BrokerId
    endpoint: Endpoint | None
    rack: str | None
    machine: str | None = None
    is_draining: bool = False

    @property
    def is_alive(self) -> bool:
        return self.endpoint is not None


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


async def describe_cluster(client: Client, *, has_dead: bool = False) -> ClusterDescription:
    """The cluster with its brokers by id: those that are alive, with `has_dead` all that it knows.

    Brokers of other kinds list dead ones only in newer versions of the request.
    """
    request = DescribeClusterRequest(include_fenced_brokers=has_dead)
    response = await client.send_to_any(request, DescribeClusterResponse)
    check(response.error_code, "the cluster", response.error_message)
    brokers = sorted(response.brokers, key=lambda item: item.broker_id)
    sites = {site.broker_id: site for site in response.sites}
    return ClusterDescription(
        id=response.cluster_id,
        controller=None if response.controller_id < 0 else BrokerId(response.controller_id),
        brokers=tuple(
            BrokerDescription(
                id=BrokerId(item.broker_id),
                endpoint=None if item.is_fenced else Endpoint(item.host, item.port),
                rack=item.rack,
                machine=sites[item.broker_id].machine if item.broker_id in sites else None,
                is_draining=item.broker_id in sites and sites[item.broker_id].is_draining,
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
