"""DescribeAcls, CreateAcls and DeleteAcls."""

from ottla.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@message(versions="1-3", flexible="2+")
class DescribeAclsRequest:
    """Find rules; null matches anything."""

    resource_type_filter: int = wire(int8, "0+")
    resource_name_filter: str | None = wire(string, "0+", nullable="0+")
    pattern_type_filter: int = wire(int8, "1+", default=3)
    principal_filter: str | None = wire(string, "0+", nullable="0+")
    host_filter: str | None = wire(string, "0+", nullable="0+")
    operation: int = wire(int8, "0+")
    permission_type: int = wire(int8, "0+")


@struct
class AclDescription:
    principal: str = wire(string, "0+")
    host: str = wire(string, "0+")
    operation: int = wire(int8, "0+")
    permission_type: int = wire(int8, "0+")


@struct
class DescribeAclsResource:
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")
    pattern_type: int = wire(int8, "1+", default=3)
    acls: list[AclDescription] = wire(array(AclDescription), "0+")


@message(versions="1-3", flexible="2+")
class DescribeAclsResponse:
    """The rules found, by resource."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    resources: list[DescribeAclsResource] = wire(array(DescribeAclsResource), "0+")


@struct
class AclCreation:
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")
    resource_pattern_type: int = wire(int8, "1+", default=3)
    principal: str = wire(string, "0+")
    host: str = wire(string, "0+")
    operation: int = wire(int8, "0+")
    permission_type: int = wire(int8, "0+")


@message(versions="1-3", flexible="2+")
class CreateAclsRequest:
    """Add rules."""

    creations: list[AclCreation] = wire(array(AclCreation), "0+")


@struct
class AclCreationResult:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")


@message(versions="1-3", flexible="2+")
class CreateAclsResponse:
    """The result for each rule, in the order of the request."""

    throttle_time_ms: int = wire(int32, "0+")
    results: list[AclCreationResult] = wire(array(AclCreationResult), "0+")


@struct
class DeleteAclsFilter:
    resource_type_filter: int = wire(int8, "0+")
    resource_name_filter: str | None = wire(string, "0+", nullable="0+")
    pattern_type_filter: int = wire(int8, "1+", default=3)
    principal_filter: str | None = wire(string, "0+", nullable="0+")
    host_filter: str | None = wire(string, "0+", nullable="0+")
    operation: int = wire(int8, "0+")
    permission_type: int = wire(int8, "0+")


@message(versions="1-3", flexible="2+")
class DeleteAclsRequest:
    """Remove the rules that match any of these filters."""

    filters: list[DeleteAclsFilter] = wire(array(DeleteAclsFilter), "0+")


@struct
class DeleteAclsMatchingAcl:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    resource_type: int = wire(int8, "0+")
    resource_name: str = wire(string, "0+")
    pattern_type: int = wire(int8, "1+", default=3)
    principal: str = wire(string, "0+")
    host: str = wire(string, "0+")
    operation: int = wire(int8, "0+")
    permission_type: int = wire(int8, "0+")


@struct
class DeleteAclsFilterResult:
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = wire(array(DeleteAclsMatchingAcl), "0+")


@message(versions="1-3", flexible="2+")
class DeleteAclsResponse:
    """The rules removed, by filter."""

    throttle_time_ms: int = wire(int32, "0+")
    filter_results: list[DeleteAclsFilterResult] = wire(array(DeleteAclsFilterResult), "0+")
