"""DescribeClientQuotas (48) and AlterClientQuotas (49), versions 0 to 1.

There are no quotas: none is found, removing one changes nothing, and setting one is refused.
"""

from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final

from ottla.broker import slices
from ottla.broker.services import RequestContext, Services
from ottla.errors import ApiError, InvalidRequest, UnsupportedVersion
from ottla.protocol.codec import Steps
from ottla.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    AlterQuotaResult,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaFilterComponent,
)

_IP: Final = "ip"
_ENTITY_TYPES: Final = ("user", "client-id", _IP)
_MATCH_TYPES: Final = range(3)  # this name, the default, any name


class DescribeClientQuotas:
    def __init__(self, services: Services) -> None:
        """DescribeClientQuotas needs no services."""

    def __call__(
        self, request: DescribeClientQuotasRequest, context: RequestContext
    ) -> DescribeClientQuotasResponse:
        try:
            _check_filter(request.components)
        except ApiError as refused:
            return DescribeClientQuotasResponse(
                error_code=refused.code, error_message=str(refused), entries=None
            )
        return DescribeClientQuotasResponse(error_message=None, entries=[])


def _check_filter(components: Sequence[QuotaFilterComponent]) -> None:
    """Refuse what Kafka refuses, with its codes."""
    types = [component.entity_type for component in components]
    for component in components:
        if component.entity_type and component.entity_type not in _ENTITY_TYPES:
            raise UnsupportedVersion(_unknown_type(component.entity_type))
        if not component.entity_type or component.match_type not in _MATCH_TYPES:
            raise InvalidRequest("a filter needs an entity type, and a match type of 0, 1 or 2")
    if len(set(types)) < len(types):
        raise InvalidRequest("an entity type is named twice: name each once")
    _check_together(types)


def _check_together(types: Collection[str]) -> None:
    if _IP in types and len(types) > 1:
        raise InvalidRequest("an ip cannot be combined with a user or a client-id")


def _unknown_type(entity_type: str) -> str:
    return f"unknown entity type {entity_type[:100]!r}: there are {', '.join(_ENTITY_TYPES)}"


class AlterClientQuotas:
    def __init__(self, services: Services) -> None:
        """AlterClientQuotas needs no services."""

    def __call__(
        self, request: AlterClientQuotasRequest, context: RequestContext
    ) -> AlterClientQuotasResponse | Coroutine[Any, Any, AlterClientQuotasResponse]:
        return slices.start(self._alter(request))

    def _alter(self, request: AlterClientQuotasRequest) -> Steps[AlterClientQuotasResponse]:
        response = AlterClientQuotasResponse()
        for entry in request.entries:
            result = AlterQuotaResult(error_message=None, entity=entry.entity)
            try:
                _check_alteration(entry)
            except ApiError as refused:
                result.error_code, result.error_message = refused.code, str(refused)
            response.entries.append(result)
            yield 1 + len(entry.ops)
        return response


def _check_alteration(entry: AlterQuotaEntry) -> None:
    types = {entity.entity_type for entity in entry.entity}
    if not types or len(types) < len(entry.entity):
        raise InvalidRequest("a quota needs an entity, and each entity type once")
    for entity_type in types:
        if entity_type not in _ENTITY_TYPES:
            raise InvalidRequest(_unknown_type(entity_type))
    _check_together(types)
    if not all(operation.remove for operation in entry.ops):
        raise InvalidRequest("there are no quotas: no client is limited, so none can be set")
