"""Requests by key: their versions, their classes, and the headers around them."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from ottla.errors import ProtocolViolation
from ottla.protocol.codec import encode_into, read_tagged_fields
from ottla.protocol.primitives import Buffer
from ottla.protocol.schema import VERSION_MAX, parse_versions

NEVER: Final = VERSION_MAX + 1  # the version from which SaslHandshake and OffsetDelete are flexible


class ApiKey(IntEnum):
    """Every request of Kafka 4.3, also those that we neither serve nor send."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class RequestHeader(NamedTuple):
    """What stands before the body of every request."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Api:
    """One request and its answer: the versions of Kafka 4.3, and where its classes are.

    `versions` is what we can read and write, not what a broker promises to serve.
    """

    key: ApiKey
    versions: range
    flexible_from: int
    module: str

    @property
    def name(self) -> str:
        """Kafka's name, for example `InitProducerId`."""
        return "".join(word.capitalize() for word in self.key.name.split("_"))

    @property
    def request_class(self) -> type[Any]:
        """Imported when first asked for: a broker loads only the messages that it meets."""
        return _message_class(self.module, f"{self.name}Request")

    @property
    def response_class(self) -> type[Any]:
        return _message_class(self.module, f"{self.name}Response")

    def request_header_is_flexible(self, version: int) -> bool:
        """Whether tagged fields stand behind the client id (header version 2, else 1)."""
        return version >= self.flexible_from

    def response_header_is_flexible(self, version: int) -> bool:
        """Whether tagged fields stand behind the correlation id (header version 1, else 0).

        Never for ApiVersions: its answer must be readable by a client that knows nothing yet.
        """
        return version >= self.flexible_from and self.key is not ApiKey.API_VERSIONS


def key_of(request_class: type) -> ApiKey:
    """The key of a request, found by the name of its class."""
    return _KEYS[request_class.__name__]


def parse_request_header(buffer: Buffer, position: int = 0) -> tuple[RequestHeader, int]:
    """Read the header of a request; return it with the position of the body.

    The version is not judged here: a client may ask for a version of ApiVersions that is unknown.
    """
    try:
        key, version, correlation_id, size_bytes = _REQUEST_HEADER.unpack_from(buffer, position)
        api = APIS.get(key)
        if api is None:
            raise ProtocolViolation(f"there is no request with key {key}")
        position += _REQUEST_HEADER.size
        client_id = None
        if size_bytes != -1:
            stop = position + size_bytes
            if size_bytes < 0 or stop > len(buffer):
                raise ProtocolViolation(f"the client id announces {size_bytes} bytes")
            client_id = str(buffer[position:stop], "utf-8")
            position = stop
        if version >= api.flexible_from:
            position = _skip_tagged_fields(buffer, position)
    except UnicodeDecodeError:
        raise ProtocolViolation("the client id is not UTF-8") from None
    except (struct.error, IndexError):
        raise ProtocolViolation("the bytes end inside the request header") from None
    return RequestHeader(api.key, version, correlation_id, client_id), position


def parse_response_header(
    key: ApiKey, version: int, buffer: Buffer, position: int = 0
) -> tuple[int, int]:
    """Read the header of the answer to a request; return correlation id and body position."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(buffer, position)
        position += _CORRELATION_ID.size
        if APIS[key].response_header_is_flexible(version):
            position = _skip_tagged_fields(buffer, position)
    except (struct.error, IndexError):
        raise ProtocolViolation("the bytes end inside the response header") from None
    return correlation_id, position


def write_request_header(out: bytearray, header: RequestHeader) -> None:
    """Append the header of a request."""
    client_id = None if header.client_id is None else header.client_id.encode()
    size_bytes = -1 if client_id is None else len(client_id)
    out += _REQUEST_HEADER.pack(
        header.api_key, header.api_version, header.correlation_id, size_bytes
    )
    out += client_id or b""
    if APIS[header.api_key].request_header_is_flexible(header.api_version):
        out.append(0)


def write_response_header(out: bytearray, key: ApiKey, version: int, correlation_id: int) -> None:
    """Append the header of an answer."""
    out += _CORRELATION_ID.pack(correlation_id)
    if APIS[key].response_header_is_flexible(version):
        out.append(0)


def request_frame(header: RequestHeader, request: object) -> bytearray:
    """A whole request as it goes over the wire: length, header, body."""
    out = bytearray(_LENGTH.size)
    write_request_header(out, header)
    encode_into(out, request, header.api_version)
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return out


def response_frame(header: RequestHeader, response: object) -> bytearray:
    """A whole answer as it goes over the wire: length, header, body."""
    out = bytearray(_LENGTH.size)
    write_response_header(out, header.api_key, header.api_version, header.correlation_id)
    encode_into(out, response, header.api_version)
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return out


def _skip_tagged_fields(buffer: Buffer, position: int) -> int:
    if buffer[position] == 0:
        return position + 1
    _, position = read_tagged_fields(buffer, position, len(buffer))
    return position


@cache
def _message_class(module: str, name: str) -> type[Any]:
    found: type[Any] = getattr(import_module(f"ottla.protocol.messages.{module}"), name)
    return found


_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(
    ">hhih"
)  # key, version, correlation id, length of the client id

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, parse_versions("3-13"), 9, "produce"),
        Api(ApiKey.FETCH, parse_versions("4-18"), 12, "fetch"),
        Api(ApiKey.LIST_OFFSETS, parse_versions("1-11"), 6, "offsets"),
        Api(ApiKey.METADATA, parse_versions("0-13"), 9, "metadata"),
        Api(ApiKey.OFFSET_COMMIT, parse_versions("2-10"), 8, "group_offsets"),
        Api(ApiKey.OFFSET_FETCH, parse_versions("1-10"), 6, "group_offsets"),
        Api(ApiKey.FIND_COORDINATOR, parse_versions("0-6"), 3, "coordination"),
        Api(ApiKey.JOIN_GROUP, parse_versions("0-9"), 6, "classic_groups"),
        Api(ApiKey.HEARTBEAT, parse_versions("0-4"), 4, "classic_groups"),
        Api(ApiKey.LEAVE_GROUP, parse_versions("0-5"), 4, "classic_groups"),
        Api(ApiKey.SYNC_GROUP, parse_versions("0-5"), 4, "classic_groups"),
        Api(ApiKey.DESCRIBE_GROUPS, parse_versions("0-6"), 5, "classic_groups"),
        Api(ApiKey.LIST_GROUPS, parse_versions("0-5"), 3, "classic_groups"),
        Api(ApiKey.SASL_HANDSHAKE, parse_versions("0-1"), NEVER, "sasl"),
        Api(ApiKey.API_VERSIONS, parse_versions("0-4"), 3, "api_versions"),
        Api(ApiKey.CREATE_TOPICS, parse_versions("2-7"), 5, "topics"),
        Api(ApiKey.DELETE_TOPICS, parse_versions("1-6"), 4, "topics"),
        Api(ApiKey.DELETE_RECORDS, parse_versions("0-2"), 2, "topics"),
        Api(ApiKey.INIT_PRODUCER_ID, parse_versions("0-5"), 2, "producers"),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, parse_versions("2-4"), 4, "offsets"),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, parse_versions("0-5"), 3, "transactions"),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, parse_versions("0-4"), 3, "transactions"),
        Api(ApiKey.END_TXN, parse_versions("0-5"), 3, "transactions"),
        Api(ApiKey.WRITE_TXN_MARKERS, parse_versions("1-2"), 1, "transactions"),
        Api(ApiKey.TXN_OFFSET_COMMIT, parse_versions("0-5"), 3, "transactions"),
        Api(ApiKey.DESCRIBE_ACLS, parse_versions("1-3"), 2, "acls"),
        Api(ApiKey.CREATE_ACLS, parse_versions("1-3"), 2, "acls"),
        Api(ApiKey.DELETE_ACLS, parse_versions("1-3"), 2, "acls"),
        Api(ApiKey.DESCRIBE_CONFIGS, parse_versions("1-4"), 4, "configs"),
        Api(ApiKey.ALTER_CONFIGS, parse_versions("0-2"), 2, "configs"),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, parse_versions("1-2"), 2, "log_dirs"),
        Api(ApiKey.DESCRIBE_LOG_DIRS, parse_versions("1-5"), 2, "log_dirs"),
        Api(ApiKey.SASL_AUTHENTICATE, parse_versions("0-2"), 2, "sasl"),
        Api(ApiKey.CREATE_PARTITIONS, parse_versions("0-3"), 2, "topics"),
        Api(ApiKey.CREATE_DELEGATION_TOKEN, parse_versions("1-3"), 2, "delegation_tokens"),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, parse_versions("1-2"), 2, "delegation_tokens"),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, parse_versions("1-2"), 2, "delegation_tokens"),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, parse_versions("1-3"), 2, "delegation_tokens"),
        Api(ApiKey.DELETE_GROUPS, parse_versions("0-2"), 2, "classic_groups"),
        Api(ApiKey.ELECT_LEADERS, parse_versions("0-2"), 2, "placement"),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, parse_versions("0-1"), 1, "configs"),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, parse_versions("0-1"), 0, "placement"),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, parse_versions("0"), 0, "placement"),
        Api(ApiKey.OFFSET_DELETE, parse_versions("0"), NEVER, "group_offsets"),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, parse_versions("0-1"), 1, "quotas"),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, parse_versions("0-1"), 1, "quotas"),
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, parse_versions("0"), 0, "sasl"),
        Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, parse_versions("0"), 0, "sasl"),
        Api(ApiKey.DESCRIBE_QUORUM, parse_versions("0-2"), 0, "quorum"),
        Api(ApiKey.UPDATE_FEATURES, parse_versions("0-2"), 0, "cluster"),
        Api(ApiKey.DESCRIBE_CLUSTER, parse_versions("0-2"), 0, "cluster"),
        Api(ApiKey.DESCRIBE_PRODUCERS, parse_versions("0"), 0, "producers"),
        Api(ApiKey.UNREGISTER_BROKER, parse_versions("0"), 0, "cluster"),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, parse_versions("0"), 0, "transactions"),
        Api(ApiKey.LIST_TRANSACTIONS, parse_versions("0-2"), 0, "transactions"),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, parse_versions("0-1"), 0, "consumer_groups"),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, parse_versions("0-1"), 0, "consumer_groups"),
        Api(ApiKey.LIST_CONFIG_RESOURCES, parse_versions("0-1"), 0, "configs"),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, parse_versions("0"), 0, "metadata"),
        Api(ApiKey.SHARE_GROUP_HEARTBEAT, parse_versions("1"), 0, "share_groups"),
        Api(ApiKey.SHARE_GROUP_DESCRIBE, parse_versions("1"), 0, "share_groups"),
        Api(ApiKey.SHARE_FETCH, parse_versions("1-2"), 0, "share_groups"),
        Api(ApiKey.SHARE_ACKNOWLEDGE, parse_versions("1-2"), 0, "share_groups"),
        Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, parse_versions("0-1"), 0, "share_group_offsets"),
        Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, parse_versions("0"), 0, "share_group_offsets"),
        Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, parse_versions("0"), 0, "share_group_offsets"),
    )
}

_KEYS: Final = {f"{api.name}Request": api.key for api in APIS.values()}
