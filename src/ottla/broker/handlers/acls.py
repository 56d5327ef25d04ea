"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 1 to 3.

There is no authorizer, so every one of them is refused with SECURITY_DISABLED, as in Kafka.
"""

from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_CODE: Final = ErrorCode.SECURITY_DISABLED
_TEXT: Final = "there is no authorizer: every client may do everything, and no rule can be kept"


class DescribeAcls:
    def __init__(self, services: Services) -> None:
        """DescribeAcls needs no services."""

    def __call__(
        self, request: DescribeAclsRequest, context: RequestContext
    ) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=_CODE, error_message=_TEXT)


class CreateAcls:
    def __init__(self, services: Services) -> None:
        """CreateAcls needs no services."""

    def __call__(self, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        refused = AclCreationResult(error_code=_CODE, error_message=_TEXT)
        return CreateAclsResponse(results=[refused] * len(request.creations))


class DeleteAcls:
    def __init__(self, services: Services) -> None:
        """DeleteAcls needs no services."""

    def __call__(self, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        refused = DeleteAclsFilterResult(error_code=_CODE, error_message=_TEXT)
        return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
