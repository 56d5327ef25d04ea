"""FindCoordinator (10), versions 0 to 6.

Groups only. Transactional ids and share groups are refused with codes that clients give up on:
"not available" would have them ask for ever.
"""

from typing import Final

from ottla.broker.group_coordinator import GroupCoordinator
from ottla.broker.routes import RequestContext
from ottla.errors import ApiError, ErrorCode
from ottla.protocol.messages.coordination import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_MANY_FROM: Final = 4
_NOBODY: Final = -1


class FindCoordinator:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        if context.version >= _MANY_FROM:
            keys = request.coordinator_keys
            found = [await self._find(key, request.key_type) for key in keys]
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
        if key_type != _GROUP:
            return _refusal(key, *_not_served(key_type))
        try:
            broker = await self._coordinator.find(key)
        except ApiError as refused:
            return _refusal(key, refused.code, str(refused))
        return Coordinator(
            key=key,
            node_id=broker.id,
            host=broker.endpoint.host,
            port=broker.endpoint.port,
            error_message=None,
        )


def _not_served(key_type: int) -> tuple[ErrorCode, str]:
    if key_type == _TRANSACTION:
        return (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "this broker does not do transactions",
        )
    return ErrorCode.INVALID_REQUEST, f"this broker does not coordinate keys of type {key_type}"


def _refusal(key: str, code: ErrorCode, text: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=_NOBODY, host="", port=_NOBODY, error_code=code, error_message=text or None
    )
