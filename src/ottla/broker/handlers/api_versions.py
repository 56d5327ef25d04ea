"""ApiVersions (18), versions 0 to 4: exactly what this broker answers, and nothing else.

A version we do not know is answered in version 0 with error 35 and the whole list, so that every
client can find its way (librdkafka tries 0 next, Java the newest listed, franz-go takes the list).
"""

import re
from collections.abc import Iterable
from typing import Final

from ottla.broker.routes import RequestContext
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[-.a-zA-Z0-9]*[a-zA-Z0-9])?")
# Older librdkafka sends compressed batches only to brokers that list Produce from 0 (KAFKA-18659).
_PRODUCE_ADVERTISED_MIN: Final = 0


class ApiVersions:
    """Knows what is served; the list is made once."""

    def __init__(self, served: Iterable[tuple[ApiKey, range]]) -> None:
        self._keys = [
            ApiVersion(
                api_key=key,
                min_version=_PRODUCE_ADVERTISED_MIN if key is ApiKey.PRODUCE else versions[0],
                max_version=versions[-1],
            )
            for key, versions in sorted(served)
        ]

    def __call__(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        return ApiVersionsResponse(api_keys=self._keys)

    def unsupported(self) -> ApiVersionsResponse:
        """The answer to a version that we do not know; to be sent as version 0."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._keys)
