"""AdminQuery (20000), version 0: Ottla's own queries, by name, with JSON in both directions.

A query is a function of the services and a JSON object, and returns a JSON object of bounded size;
what is larger comes in pages. See docs/adr/0040-one-private-request.md.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.broker.waiting_listing import list_waiting
from ottla.errors import ApiError, InvalidRequest
from ottla.protocol.messages.admin import AdminQueryRequest, AdminQueryResponse, Json

BODY_BYTES_MAX: Final = 64 * 1024
_Query = Callable[[Services, dict[str, Json]], Awaitable[dict[str, Json]]]
QUERIES: Final[dict[str, _Query]] = {"waiting.list": list_waiting}


class AdminQuery:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(
        self, request: AdminQueryRequest, context: RequestContext
    ) -> AdminQueryResponse:
        try:
            query = QUERIES.get(request.name)
            if query is None:
                raise InvalidRequest(
                    f"unknown query {request.name[:100]!r}: known are {', '.join(sorted(QUERIES))}"
                )
            result = await query(self._services, read_body(request.body))
        except ApiError as refused:
            return AdminQueryResponse(error_code=refused.code, error_message=str(refused))
        return AdminQueryResponse(body=json.dumps(result, separators=(",", ":")).encode())


def read_body(data: bytes) -> dict[str, Json]:
    """The JSON object of a query, or `InvalidRequest`."""
    if len(data) > BODY_BYTES_MAX:
        raise InvalidRequest(f"a query of {len(data)} bytes: {BODY_BYTES_MAX} are the most")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidRequest("the body of a query is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body of a query is not a JSON object")
    return body
