"""Kafka's error codes, and an exception for each that Ottla raises."""

from collections.abc import Iterable
from enum import IntEnum
from itertools import islice
from typing import ClassVar, Final, NamedTuple

_TEXT_LENGTH_MAX: Final = 2000
_RECORD_ERRORS_MAX: Final = 1000  # named in a response: a few kilobytes can hold millions


class ErrorCode(IntEnum):
    """Every error code of Kafka 4.3."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


class ApiError(Exception):
    """An error with a code in the protocol: raised anywhere, turned into a response in one place.

    The text goes to the client where the API carries one, so it says what to do.
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, text: str = "") -> None:
        """Limit the text, which may contain names from clients: older versions carry 32 KiB."""
        super().__init__(text[:_TEXT_LENGTH_MAX])


class OffsetOutOfRange(ApiError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptBatch(ApiError):
    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartition(ApiError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailable(ApiError):
    """There is no leader yet: retry soon."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeader(ApiError):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOut(ApiError):
    code = ErrorCode.REQUEST_TIMED_OUT


class ReplicaNotAvailable(ApiError):
    code = ErrorCode.REPLICA_NOT_AVAILABLE


class MessageTooLarge(ApiError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidTopic(ApiError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class NotEnoughReplicas(ApiError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppend(ApiError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class StaleBrokerEpoch(ApiError):
    code = ErrorCode.STALE_BROKER_EPOCH


class InvalidRequiredAcks(ApiError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class ClusterAuthorizationFailed(ApiError):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class RecordError(NamedTuple):
    """A bad record of a batch: its index there, and what is wrong (KIP-467)."""

    batch_index: int
    text: str


class RecordsRefused(ApiError):
    """A batch is refused for some of its records: the first of them go to the producer."""

    def __init__(self, text: str = "", records: Iterable[RecordError] = ()) -> None:
        super().__init__(text)
        self.records = tuple(islice(records, _RECORD_ERRORS_MAX))


class InvalidTimestamp(RecordsRefused):
    code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedVersion(ApiError):
    code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExists(ApiError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitions(ApiError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(ApiError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(ApiError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfig(ApiError):
    code = ErrorCode.INVALID_CONFIG


class InvalidRequest(ApiError):
    code = ErrorCode.INVALID_REQUEST


class PolicyViolation(ApiError):
    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequence(ApiError):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(ApiError):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnState(ApiError):
    code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMapping(ApiError):
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeout(ApiError):
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactions(ApiError):
    code = ErrorCode.CONCURRENT_TRANSACTIONS


class CoordinatorFenced(ApiError):
    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TransactionalIdRefused(ApiError):
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class ProducerFenced(ApiError):
    code = ErrorCode.PRODUCER_FENCED


class TransactionAbortable(ApiError):
    code = ErrorCode.TRANSACTION_ABORTABLE


class StorageFailed(ApiError):
    code = ErrorCode.KAFKA_STORAGE_ERROR


class DiskFull(StorageFailed):
    """No space is left; the data on disk is intact."""


class UnknownProducerId(ApiError):
    code = ErrorCode.UNKNOWN_PRODUCER_ID


class FetchSessionIdNotFound(ApiError):
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpoch(ApiError):
    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class TopicDeletionDisabled(ApiError):
    code = ErrorCode.TOPIC_DELETION_DISABLED


class FencedLeaderEpoch(ApiError):
    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(ApiError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompression(ApiError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class OffsetNotAvailable(ApiError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE


class InvalidRecord(RecordsRefused):
    code = ErrorCode.INVALID_RECORD


class PreferredLeaderNotAvailable(ApiError):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailable(ApiError):
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class ElectionNotNeeded(ApiError):
    code = ErrorCode.ELECTION_NOT_NEEDED


class ReassignmentInProgress(ApiError):
    code = ErrorCode.REASSIGNMENT_IN_PROGRESS


class BrokerIdNotRegistered(ApiError):
    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class NoReassignmentInProgress(ApiError):
    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class UnknownTopicId(ApiError):
    code = ErrorCode.UNKNOWN_TOPIC_ID


class InconsistentTopicId(ApiError):
    code = ErrorCode.INCONSISTENT_TOPIC_ID


class FetchSessionTopicIdMixed(ApiError):
    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


class UnsupportedForFormat(ApiError):
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class CoordinatorLoadInProgress(ApiError):
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailable(ApiError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinator(ApiError):
    code = ErrorCode.NOT_COORDINATOR


class InconsistentGroupProtocol(ApiError):
    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class UnknownMemberId(ApiError):
    code = ErrorCode.UNKNOWN_MEMBER_ID


class IllegalGeneration(ApiError):
    code = ErrorCode.ILLEGAL_GENERATION


class InvalidSessionTimeout(ApiError):
    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgress(ApiError):
    code = ErrorCode.REBALANCE_IN_PROGRESS


class GroupIdNotFound(ApiError):
    code = ErrorCode.GROUP_ID_NOT_FOUND


class GroupMaxSizeReached(ApiError):
    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceId(ApiError):
    code = ErrorCode.FENCED_INSTANCE_ID


class FencedMemberEpoch(ApiError):
    code = ErrorCode.FENCED_MEMBER_EPOCH


class UnreleasedInstanceId(ApiError):
    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignor(ApiError):
    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class StaleMemberEpoch(ApiError):
    code = ErrorCode.STALE_MEMBER_EPOCH


class InvalidRegularExpression(ApiError):
    code = ErrorCode.INVALID_REGULAR_EXPRESSION


class PeerError(ApiError):
    """An error that another broker responded with, on behalf of a client."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = ErrorCode(code)  # type: ignore[misc]  # each one has its own


class ProtocolViolation(Exception):
    """Bytes that violate the protocol: the connection has to be closed."""


class TooManyElements(ProtocolViolation):
    """A message has more elements, in all its arrays together, than allowed."""


class ResponseTooLarge(ProtocolViolation):
    """The response would be larger than any client reads."""


class UsageRefused(Exception):
    """An invalid command, option, file or setting; the text says what to do instead."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` with the most similar known word, or nothing if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415  # only mistakes need it

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
