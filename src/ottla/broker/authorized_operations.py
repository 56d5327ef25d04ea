"""The operations that a client may do, as a set of bits: all, for there is no authorizer."""

from enum import IntEnum
from typing import Final

NOT_REQUESTED: Final = -(2**31)


class _Operation(IntEnum):
    """Kafka's AclOperation: the bit of an operation is its number."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: _Operation) -> int:
    return sum(1 << operation for operation in operations)


_SETTINGS: Final = (_Operation.DESCRIBE_CONFIGS, _Operation.ALTER_CONFIGS)

CLUSTER_OPERATIONS: Final = _bits(
    _Operation.CREATE,
    _Operation.ALTER,
    _Operation.DESCRIBE,
    _Operation.CLUSTER_ACTION,
    _Operation.IDEMPOTENT_WRITE,
    *_SETTINGS,
)
TOPIC_OPERATIONS: Final = _bits(
    _Operation.READ,
    _Operation.WRITE,
    _Operation.CREATE,
    _Operation.DELETE,
    _Operation.ALTER,
    _Operation.DESCRIBE,
    *_SETTINGS,
)
GROUP_OPERATIONS: Final = _bits(_Operation.READ, _Operation.DELETE, _Operation.DESCRIBE, *_SETTINGS)
