"""DescribeUserScramCredentials (50), version 0: there are no users, so none has credentials.

`kafka-configs --entity-type users` requests them together with the users' quotas.
"""

from ottla.broker.services import RequestContext, Services
from ottla.errors import ErrorCode
from ottla.protocol.messages.sasl import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


class DescribeUserScramCredentials:
    def __init__(self, services: Services) -> None:
        """DescribeUserScramCredentials needs no services."""

    def __call__(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        names = dict.fromkeys(user.name for user in request.users or ())
        return DescribeUserScramCredentialsResponse(
            error_message=None,
            results=[
                DescribeUserScramCredentialsResult(
                    user=name,
                    error_code=ErrorCode.RESOURCE_NOT_FOUND,
                    error_message="there are no users: this broker has no SASL",
                )
                for name in names
            ],
        )
