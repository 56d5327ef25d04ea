"""Transactions by API version (KIP-890): the protocol that a client uses, the errors it knows.

Transaction version 2 begins with a version of each API: partitions are added by the write itself,
and every end raises the epoch. Newer errors began with other versions. A client that gets one it
does not know fails, so it gets the one that makes it do the right thing instead.
"""

from typing import Final, NamedTuple

from ottla.coordinator.transactions.transactions import BUMPING_VERSION
from ottla.errors import (
    ApiError,
    ErrorCode,
    InvalidProducerEpoch,
    InvalidTxnState,
    NotEnoughReplicas,
)
from ottla.protocol.api import ApiKey

_NEVER: Final = 2**15  # above every version of an API


class _Versions(NamedTuple):
    """The versions of one API from which on its clients know something."""

    bumping_from: int = _NEVER  # transaction version 2
    fenced_from: int = _NEVER  # PRODUCER_FENCED; older ones: INVALID_PRODUCER_EPOCH
    abortable_from: int = _NEVER  # TRANSACTION_ABORTABLE; older ones: INVALID_TXN_STATE
    retriable: ErrorCode | None = None  # for all other errors, if clients know only `known`
    known: frozenset[ErrorCode] = frozenset()


_VERSIONS: Final = {
    ApiKey.PRODUCE: _Versions(
        bumping_from=12,
        abortable_from=11,
        retriable=ErrorCode.NOT_ENOUGH_REPLICAS,
        known=frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING}),
    ),
    ApiKey.TXN_OFFSET_COMMIT: _Versions(
        bumping_from=5,
        abortable_from=4,
        # Of all retriable errors, this does not send clients to look for another coordinator.
        retriable=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        known=frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_REQUEST}),
    ),
    ApiKey.INIT_PRODUCER_ID: _Versions(fenced_from=4),
    # From version 4 on it is sent by brokers, for producers of transaction version 2.
    ApiKey.ADD_PARTITIONS_TO_TXN: _Versions(bumping_from=4, fenced_from=2, abortable_from=5),
    ApiKey.ADD_OFFSETS_TO_TXN: _Versions(fenced_from=2),
    ApiKey.END_TXN: _Versions(bumping_from=5, fenced_from=2),
}
_REPLACEMENTS: Final[dict[ErrorCode, type[ApiError]]] = {
    error.code: error for error in (InvalidProducerEpoch, InvalidTxnState, NotEnoughReplicas)
}


def transaction_version(api: ApiKey, version: int) -> int:
    """The version of the transaction protocol that a request of this version uses."""
    return BUMPING_VERSION if version >= _VERSIONS[api].bumping_from else 0


def known_error(api: ApiKey, version: int, error: ErrorCode) -> ErrorCode:
    """The error, or the one that clients of this version know instead."""
    versions = _VERSIONS[api]
    match error:
        case ErrorCode.NONE:
            return error
        case ErrorCode.PRODUCER_FENCED:
            is_known = version >= versions.fenced_from
            return error if is_known else ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE:
            is_known = version >= versions.abortable_from
            return error if is_known else ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version >= versions.bumping_from:
            return error
        case _ if versions.retriable is None or error in versions.known:
            return error
        case _:
            return versions.retriable


def known_refusal(api: ApiKey, version: int, refused: ApiError) -> ApiError:
    """The same for an exception, with its text."""
    code = known_error(api, version, refused.code)
    return refused if code is refused.code else _REPLACEMENTS[code](str(refused))
