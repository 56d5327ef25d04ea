"""DescribeCluster, UnregisterBroker and UpdateFeatures: the cluster as a whole."""

from ottla.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@message(versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """Describe the brokers of the cluster."""

    include_cluster_authorized_operations: bool = wire(boolean, "0+")
    endpoint_type: int = wire(int8, "1+", default=1)
    include_fenced_brokers: bool = wire(boolean, "2+")


@struct
class DescribeClusterBroker:
    broker_id: int = wire(int32, "0+")
    host: str = wire(string, "0+")
    port: int = wire(int32, "0+")
    rack: str | None = wire(string, "0+", nullable="0+", default=None)
    is_fenced: bool = wire(boolean, "2+")


@struct
class BrokerSite:
    """Ottla's own: the machine that a broker is on, and whether it is being drained."""

    broker_id: int = wire(int32, "0+")
    machine: str | None = wire(string, "0+", nullable="0+", default=None)
    is_draining: bool = wire(boolean, "0+")


@message(versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The cluster id, its controller and its brokers."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    endpoint_type: int = wire(int8, "1+", default=1)
    cluster_id: str = wire(string, "0+")
    controller_id: int = wire(int32, "0+", default=-1)
    brokers: list[DescribeClusterBroker] = wire(array(DescribeClusterBroker), "0+")
    cluster_authorized_operations: int = wire(int32, "0+", default=-(2**31))
    sites: list[BrokerSite] = wire(array(BrokerSite), "0+", tag=10_000)  # Ottla's own


@message(versions="0", flexible="0+")
class UnregisterBrokerRequest:
    """Unregister a broker that will not come back."""

    broker_id: int = wire(int32, "0+")


@message(versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """The result of unregistering the broker."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")


@struct
class FeatureUpdateKey:
    feature: str = wire(string, "0+")
    max_version_level: int = wire(int16, "0+")
    allow_downgrade: bool = wire(boolean, "0")
    upgrade_type: int = wire(int8, "1+", default=1)


@message(versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Raise or lower the level of features of the whole cluster."""

    timeout_ms: int = wire(int32, "0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = wire(array(FeatureUpdateKey), "0+")
    validate_only: bool = wire(boolean, "1+")


@struct
class UpdatableFeatureResult:
    feature: str = wire(string, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")


@message(versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """The result for each feature."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    results: list[UpdatableFeatureResult] = wire(array(UpdatableFeatureResult), "0-1")
