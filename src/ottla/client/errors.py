"""Errors of client requests, and their texts for users."""

from collections.abc import Mapping
from typing import Final

from ottla.errors import ErrorCode

# The broker did nothing, and the same request may succeed once metadata is fresh.
RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class ClientError(Exception):
    """A request failed; the text says what happened and what to do."""


class Unreachable(ClientError):
    """No connection could be opened: the broker has not seen the request.

    `is_refused` if its machine says that nothing listens there.
    """

    def __init__(self, text: str, *, is_refused: bool = False) -> None:
        super().__init__(text)
        self.is_refused = is_refused


class ClusterUnreachable(Unreachable):
    """No bootstrap address and no known broker could be reached."""


class ConnectionLost(ClientError):
    """The connection ended before the response: the broker may have executed the request."""


class DeadlineExceeded(ClientError):
    """The response did not come in time: the broker may still execute the request."""


# The outcome is unknown: an idempotent request is retried, another is not.
TRANSPORT_ERRORS: Final = (Unreachable, ConnectionLost, DeadlineExceeded)


class NotSupported(ClientError):
    """The broker supports no version of this API that this client supports."""


class Unreadable(ClientError):
    """The broker sent records that cannot be decoded: damaged, or of an unknown format."""


class Refused(ClientError):
    """The broker responded with an error code."""

    def __init__(self, code: ErrorCode, subject: str, detail: str | None = None) -> None:
        super().__init__(f"{subject}: {detail or _explain(code)}")
        self.code = code
        self.subject = subject

    @property
    def is_retriable(self) -> bool:
        """True if the broker did nothing and the same request may succeed later."""
        return self.code in RETRIABLE_CODES


class RecordsRefused(Refused):
    """A batch was refused for some of its records: nothing of it is stored.

    `reasons` are those of the records, by their index in the batch; a broker names only the first.
    """

    def __init__(
        self, code: ErrorCode, subject: str, detail: str | None, reasons: Mapping[int, str]
    ) -> None:
        super().__init__(code, subject, detail)
        self.reasons = reasons


class NoSuchTopic(Refused):
    """The cluster's metadata has no such topic or partition: retrying will not help."""

    def __init__(self, topic: str, partition: int | None = None, hint: str = "") -> None:
        """`hint` goes on behind the reason."""
        subject = (
            f"topic {topic}" if partition is None else f"partition {partition} of topic {topic}"
        )
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject, f"it does not exist{hint}")
        self.topic = topic
        self.partition = partition

    @property
    def is_retriable(self) -> bool:
        return False


class NoSuchGroup(Refused):
    """The group's coordinator does not know it: retrying will not help."""

    def __init__(self, group_id: str, hint: str = "") -> None:
        """`hint` goes on behind the reason."""
        super().__init__(
            ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id}", f"it does not exist{hint}"
        )
        self.group_id = group_id


class Fenced(Refused):
    """Another producer has taken the transactional id, or the transaction was ended for it."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(
            ErrorCode.PRODUCER_FENCED,
            f"transactional id {transactional_id}",
            "another producer has taken over, or the transaction took longer than its timeout;"
            " it is aborted: close this producer",
        )


def check(code: int, subject: str, detail: str | None = None) -> None:
    """Raise `Refused` about `subject` unless the code is NONE."""
    if code != ErrorCode.NONE:
        raise Refused(known_code(code), subject, detail)


def check_group(code: int, group_id: str, detail: str | None = None) -> None:
    """Raise `NoSuchGroup`, or `Refused` about the group, unless the code is NONE."""
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise NoSuchGroup(group_id)
    check(code, f"group {group_id}", detail)


def known_code(code: int) -> ErrorCode:
    """The error of a code; UNKNOWN_SERVER_ERROR for one that is not known here."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


_EXPLANATIONS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic with this name exists already",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "invalid topic name",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is outside of the log",
    ErrorCode.MESSAGE_TOO_LARGE: "it is larger than max.message.bytes allows",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition currently has no leader",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas requires",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are fewer brokers than replicas",
    ErrorCode.INVALID_PARTITIONS: "invalid number of partitions",
    ErrorCode.TOPIC_DELETION_DISABLED: "delete.topic.enable is false at the broker",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk has failed",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "it currently has no coordinator",
    ErrorCode.NOT_COORDINATOR: "its coordinator has moved",
    ErrorCode.INVALID_GROUP_ID: "invalid group id",
    ErrorCode.GROUP_ID_NOT_FOUND: "it does not exist",
    ErrorCode.NON_EMPTY_GROUP: "it has members: stop them first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group are reading the topic",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as group.max.size allows",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members use other assignors than"
    " `range` or `roundrobin`, or it is not a group of consumers",
    ErrorCode.UNKNOWN_MEMBER_ID: "it has members, and this is not one of them",
    ErrorCode.ILLEGAL_GENERATION: "it has rebalanced, and other members have the partitions now",
    ErrorCode.REBALANCE_IN_PROGRESS: "it is rebalancing",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "it does not exist; `ottla txn list` shows those that do",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "invalid regular expression",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "its timeout is longer than the broker's"
    " transaction.max.timeout.ms allows",
}


def _explain(code: ErrorCode) -> str:
    return _EXPLANATIONS.get(code) or code.name.lower().replace("_", " ")
