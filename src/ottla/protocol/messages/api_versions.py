"""ApiVersions: the requests that this broker serves, with their versions."""

from ottla.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, wire


@message(versions="0-4", flexible="3+")
class ApiVersionsRequest:
    """The first request on a connection; served before authentication."""

    client_software_name: str = wire(string, "3+")
    client_software_version: str = wire(string, "3+")


@struct
class ApiVersion:
    api_key: int = wire(int16, "0+")
    min_version: int = wire(int16, "0+")
    max_version: int = wire(int16, "0+")


@struct
class SupportedFeatureKey:
    name: str = wire(string, "3+")
    min_version: int = wire(int16, "3+")
    max_version: int = wire(int16, "3+")


@struct
class FinalizedFeatureKey:
    name: str = wire(string, "3+")
    max_version_level: int = wire(int16, "3+")
    min_version_level: int = wire(int16, "3+")


@message(versions="0-4", flexible="3+")
class ApiVersionsResponse:
    """The version range of each request; always sent with the oldest header version."""

    error_code: int = wire(int16, "0+")
    api_keys: list[ApiVersion] = wire(array(ApiVersion), "0+")
    throttle_time_ms: int = wire(int32, "1+")
    supported_features: list[SupportedFeatureKey] = wire(array(SupportedFeatureKey), "3+", tag=0)
    finalized_features_epoch: int = wire(int64, "3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = wire(array(FinalizedFeatureKey), "3+", tag=2)
    zk_migration_ready: bool = wire(boolean, "3+", tag=3)
