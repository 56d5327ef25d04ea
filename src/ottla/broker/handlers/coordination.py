"""FindCoordinator (10), versions 0 to 6.

Groups and transactional ids. Share groups are refused with a code that clients give up on: "not
available" would have them ask for ever.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ottla.broker.routes import RequestContext
from ottla.broker.slices import Pace
from ottla.cluster.image import BrokerImage
from ottla.errors import ApiError, ErrorCode
from ottla.protocol.messages.coordination import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP: Final = 0
TRANSACTION: Final = 1
_MANY_FROM: Final = 4
_NOBODY: Final = -1


class FindCoordinator:
    """`finders` know, for each type of key, the broker of a key."""

    def __init__(self, finders: Mapping[int, Callable[[str], Awaitable[BrokerImage]]]) -> None:
        self._finders = finders

    async def __call__(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        if context.version >= _MANY_FROM:
            found, pace = [], Pace()
            for key in request.coordinator_keys:
                found.append(await self._find(key, request.key_type))
                await pace.spend(2)
            return FindCoordinatorResponse(coordinators=found)
        one = await self._find(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _find(self, key: str, key_type: int) -> Coordinator:
        find = self._finders.get(key_type)
        if find is None:
            text = f"this broker does not coordinate keys of type {key_type}"
            return _refusal(key, ErrorCode.INVALID_REQUEST, text)
        try:
            broker = await find(key)
        except ApiError as refused:
            return _refusal(key, refused.code, str(refused))
        return Coordinator(
            key=key,
            node_id=broker.id,
            host=broker.endpoint.host,
            port=broker.endpoint.port,
            error_message=None,
        )


def _refusal(key: str, code: ErrorCode, text: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=_NOBODY, host="", port=_NOBODY, error_code=code, error_message=text or None
    )
