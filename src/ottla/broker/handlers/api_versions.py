"""ApiVersions (18), versions 0 to 4: exactly the requests that this broker serves.

Ottla's own request is listed to clients that call themselves `ottla` (from version 3 on), and to no
others: a client that checks keys against Kafka's would stumble over it.

The response to an unknown version is error 35 and the whole list in version 0, so that every client
finds a common one (librdkafka tries 0 next, Java the newest listed, franz-go uses the list).

The features are transaction.version 2 (KIP-890): clients that see it leave it to Produce and
TxnOffsetCommit to add partitions, and take the next epoch from EndTxn; group.version 1: groups of
the consumer protocol (KIP-848); and share.version 1: share groups (KIP-932).
"""

import re
from functools import cache
from typing import Final

from ottla.broker.apis import HANDLERS
from ottla.broker.services import RequestContext, Services
from ottla.errors import ErrorCode
from ottla.protocol.api import APIS, PRIVATE, ApiKey
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[-.a-zA-Z0-9]*[a-zA-Z0-9])?")
# Older librdkafka sends compressed batches only to brokers that list Produce from 0 (KAFKA-18659).
_PRODUCE_ADVERTISED_MIN: Final = 0
_FEATURES: Final = {  # with their levels
    "group.version": 1,
    "share.version": 1,
    "transaction.version": 2,
}
_FEATURES_EPOCH: Final = 0  # features change only with the program
_OWN_SOFTWARE: Final = "ottla"
_ZERO_MIN_FROM: Final = 4  # older clients cannot read that a feature begins at level 0


class ApiVersions:
    """Lists the rows of the broker's table of handlers."""

    def __init__(self, services: Services) -> None:
        """The services do not matter: the response is the same on every broker."""

    def __call__(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        supported = [
            SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in _FEATURES.items()
        ]
        return ApiVersionsResponse(
            api_keys=_served(is_own=request.client_software_name == _OWN_SOFTWARE),
            supported_features=supported if context.version >= _ZERO_MIN_FROM else [],
            finalized_features_epoch=_FEATURES_EPOCH,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in _FEATURES.items()
            ],
        )

    def unsupported_version(self) -> ApiVersionsResponse:
        """The response to a version that is not served; to be sent as version 0."""
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_served(is_own=False)
        )


@cache
def _served(*, is_own: bool) -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=key,
            min_version=(
                _PRODUCE_ADVERTISED_MIN if key is ApiKey.PRODUCE else APIS[key].versions[0]
            ),
            max_version=APIS[key].versions[-1],
        )
        for key in sorted(HANDLERS)
        if is_own or key not in PRIVATE
    ]
