"""FindCoordinator (10), versions 0 to 6.

Groups of every kind, transactional ids, and share partitions (`group:topicId:partition`), which
brokers alone have a use for. Keys of other types are refused with an error that is not retriable:
clients would repeat the request without end.
"""

from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace
from ottla.errors import ApiError, ErrorCode, InvalidRequest
from ottla.protocol.messages.coordination import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.queues.share_state import SharePartitionKey

_GROUP: Final = 0  # key types
_TRANSACTION: Final = 1
_SHARE_PARTITION: Final = 2
_MANY_FROM: Final = 4
_NO_BROKER: Final = -1


class FindCoordinator:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        if context.version >= _MANY_FROM:
            found, pace = [], Pace()
            for key in request.coordinator_keys:
                found.append(await self._find(key, request.key_type))
                await pace.spend(2)
            return FindCoordinatorResponse(coordinators=found)
        coordinator = await self._find(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    async def _find(self, key: str, key_type: int) -> Coordinator:
        try:
            if key_type == _GROUP:
                broker = await self._services.groups.find(key)
            elif key_type == _TRANSACTION:
                broker = await self._services.transactions.find(key)
            elif key_type == _SHARE_PARTITION:
                broker = await self._services.share.find(str(SharePartitionKey.parse(key)))
            else:
                raise InvalidRequest(f"this broker does not coordinate keys of type {key_type}")
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
        key=key,
        node_id=_NO_BROKER,
        host="",
        port=_NO_BROKER,
        error_code=code,
        error_message=text or None,
    )
