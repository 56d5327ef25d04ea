"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from ottla.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@struct
class DescribeConfigsResource:
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")
    configuration_keys: list[str] | None = wire(array(string), "0+", nullable="0+")


@message(versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Show settings of topics and brokers, all of them when `configuration_keys` is null."""

    resources: list[DescribeConfigsResource] = wire(array(DescribeConfigsResource), "0+")
    include_synonyms: bool = wire(boolean, "1+")
    include_documentation: bool = wire(boolean, "3+")


@struct
class DescribeConfigsSynonym:
    name: str = wire(string, "1+")
    value: str | None = wire(string, "1+", nullable="0+")
    source: int = wire(int8, "1+")


@struct
class DescribeConfigsResourceResult:
    name: str = wire(string, "0+")
    value: str | None = wire(string, "0+", nullable="0+")
    read_only: bool = wire(boolean, "0+")
    config_source: int = wire(int8, "1+", default=-1)
    is_sensitive: bool = wire(boolean, "0+")
    synonyms: list[DescribeConfigsSynonym] = wire(array(DescribeConfigsSynonym), "1+")
    config_type: int = wire(int8, "3+")
    documentation: str | None = wire(string, "3+", nullable="0+")


@struct
class DescribeConfigsResult:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")
    configs: list[DescribeConfigsResourceResult] = wire(array(DescribeConfigsResourceResult), "0+")


@message(versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """Settings with their source; a source of -1 must not reach a client."""

    throttle_time_ms: int = wire(int32, "0+")
    results: list[DescribeConfigsResult] = wire(array(DescribeConfigsResult), "0+")


@struct
class AlterableConfig:
    name: str = wire(string, "0+")
    value: str | None = wire(string, "0+", nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")
    configs: list[AlterableConfig] = wire(array(AlterableConfig), "0+")


@message(versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """Replace all settings of a resource (the older way)."""

    resources: list[AlterConfigsResource] = wire(array(AlterConfigsResource), "0+")
    validate_only: bool = wire(boolean, "0+")


@struct
class AlterConfigsResourceResponse:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")


@message(versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """The result for each resource."""

    throttle_time_ms: int = wire(int32, "0+")
    responses: list[AlterConfigsResourceResponse] = wire(array(AlterConfigsResourceResponse), "0+")


@struct
class IncrementalAlterableConfig:
    name: str = wire(string, "0+")
    config_operation: int = wire(int8, "0+")
    value: str | None = wire(string, "0+", nullable="0+")


@struct
class IncrementalAlterConfigsResource:
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")
    configs: list[IncrementalAlterableConfig] = wire(array(IncrementalAlterableConfig), "0+")


@message(versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Change single settings: 0 set, 1 delete, 2 append, 3 subtract."""

    resources: list[IncrementalAlterConfigsResource] = wire(
        array(IncrementalAlterConfigsResource), "0+"
    )
    validate_only: bool = wire(boolean, "0+")


@message(versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """The result for each resource."""

    throttle_time_ms: int = wire(int32, "0+")
    responses: list[AlterConfigsResourceResponse] = wire(array(AlterConfigsResourceResponse), "0+")


@message(versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """List the resources that have settings, by type."""

    resource_types: list[int] = wire(array(int8), "1+")


@struct
class ConfigResource:
    resource_name: str = wire(string, "0+")
    resource_type: int = wire(int8, "1+", default=16)


@message(versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """The names and types of resources that have settings."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    config_resources: list[ConfigResource] = wire(array(ConfigResource), "0+")
