"""What can go wrong when a broker is asked something."""

from typing import Final

from ottla.errors import ErrorCode

# The broker did nothing, and the same request may succeed once metadata is fresh.
NOTHING_HAPPENED: Final = frozenset(
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
    """A question to a broker got no good answer; the text says what to do."""


class Unreachable(ClientError):
    """No connection could be opened: the broker has not seen the request."""


class ConnectionLost(ClientError):
    """The connection ended before the answer: the broker may have done what was asked."""


class DeadlineExceeded(ClientError):
    """The answer did not come in time: the broker may still do what was asked."""


class NotSupported(ClientError):
    """The broker does not speak a version of this API that we speak."""


class Unreadable(ClientError):
    """The broker sent records that cannot be read: damaged, or of a kind we do not know."""


class Refused(ClientError):
    """The broker answered with an error."""

    def __init__(self, code: ErrorCode, subject: str, detail: str | None = None) -> None:
        super().__init__(f"{subject}: {detail or _explain(code)}")
        self.code = code
        self.subject = subject

    @property
    def may_try_again(self) -> bool:
        """Nothing has happened at the broker, and trying again may help."""
        return self.code in NOTHING_HAPPENED


class NoSuchTopic(Refused):
    """The cluster's metadata has no such topic or partition: asking again will not help."""

    def __init__(self, subject: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject, "it does not exist")

    @property
    def may_try_again(self) -> bool:
        return False


class NoSuchGroup(Refused):
    """The group's coordinator does not know it: asking again will not help."""

    def __init__(self, group_id: str) -> None:
        super().__init__(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id}", "it does not exist")


class Fenced(Refused):
    """Another producer has taken the transactional id, or the transaction was ended for it."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(
            ErrorCode.PRODUCER_FENCED,
            f"transactional id {transactional_id}",
            "another producer has taken its place, or its transaction took longer than its"
            " timeout; nothing of it counts, and this producer has to end",
        )


def check(code: int, subject: str, detail: str | None = None) -> None:
    """Raise unless the answer about `subject` is that all is well."""
    if code != ErrorCode.NONE:
        raise Refused(_known(code), subject, detail)


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


_EXPLANATIONS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    ErrorCode.TOPIC_ALREADY_EXISTS: "a topic with this name exists already",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "this cannot be a topic's name",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset lies outside of what the log holds",
    ErrorCode.MESSAGE_TOO_LARGE: "it is larger than max.message.bytes allows",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader at the moment",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas asks for",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are not that many brokers",
    ErrorCode.INVALID_PARTITIONS: "this number of partitions is not possible",
    ErrorCode.TOPIC_DELETION_DISABLED: "delete.topic.enable is false at the broker",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk has failed",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still reading what it knows",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "nobody coordinates it at the moment",
    ErrorCode.NOT_COORDINATOR: "its coordinator has moved",
    ErrorCode.INVALID_GROUP_ID: "this cannot be a group's name",
    ErrorCode.GROUP_ID_NOT_FOUND: "it does not exist",
    ErrorCode.NON_EMPTY_GROUP: "it has members: stop them first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group are reading the topic",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as group.max.size allows",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members share partitions in another way than"
    " `range` or `roundrobin`, or it is not a group of consumers",
    ErrorCode.UNKNOWN_MEMBER_ID: "it has members, and this is not one of them",
    ErrorCode.ILLEGAL_GENERATION: "it has rebalanced, and the partitions are others' now",
    ErrorCode.REBALANCE_IN_PROGRESS: "it is rebalancing",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "its timeout is longer than the broker's"
    " transaction.max.timeout.ms allows",
}


def _explain(code: ErrorCode) -> str:
    return _EXPLANATIONS.get(code) or code.name.lower().replace("_", " ")
