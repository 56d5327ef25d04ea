"""API keys with their versions and message classes; request and response headers and frames."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from ottla.errors import ProtocolViolation, ResponseTooLarge
from ottla.protocol.codec import Steps, encode_in_slices, encode_into
from ottla.protocol.primitives import Buffer, read_tagged_fields
from ottla.protocol.schema import VERSION_MAX, parse_versions

RESPONSE_BYTES_MAX: Final = 100 << 20  # the limit of librdkafka and of Kafka's own clients
NEVER: Final = VERSION_MAX + 1  # the version from which SaslHandshake and OffsetDelete are flexible


class ApiKey(IntEnum):
    """Every API key of Kafka 4.3, also those that Ottla neither serves nor sends, and its own."""

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
    ADMIN_QUERY = 20_000  # Ottla's own, far behind those that Kafka may add


PRIVATE: Final = frozenset({ApiKey.ADMIN_QUERY})  # listed to Ottla's own clients only


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Api:
    """An API: its versions in Kafka 4.3, and the module of its message classes.

    `versions` are those with a codec, not those that a broker offers to serve.
    """

    key: ApiKey
    name: str  # Kafka's, for example InitProducerId
    versions: range
    flexible_from: int
    response_flexible_from: int  # of headers
    module: str

    @property
    def request_class(self) -> type[Any]:
        """Imported on first use: a broker loads only the messages that it receives."""
        return _message_class(self.module, self.name + "Request")

    @property
    def response_class(self) -> type[Any]:
        return _message_class(self.module, self.name + "Response")

    def request_header_is_flexible(self, version: int) -> bool:
        """True if tagged fields follow the client id (header version 2, else 1)."""
        return version >= self.flexible_from

    def response_header_is_flexible(self, version: int) -> bool:
        """True if tagged fields follow the correlation id (header version 1, else 0).

        Never for ApiVersions: a client reads its response before it knows the broker's versions.
        """
        return version >= self.response_flexible_from


def key_of(request_class: type) -> ApiKey:
    """The API key of a request class."""
    return _KEYS[request_class.__name__]


def parse_request_header(buffer: Buffer, position: int = 0) -> tuple[RequestHeader, int]:
    """Read the header of a request; return it with the position of the body.

    The version is not checked here: a client may send an unknown version of ApiVersions.
    """
    try:
        key, version, correlation_id, size_bytes = _REQUEST_HEADER.unpack_from(buffer, position)
        api = APIS.get(key)
        if api is None:
            raise ProtocolViolation(f"unknown API key {key}")
        position += _REQUEST_HEADER.size
        client_id = None
        if size_bytes != -1:
            stop = position + size_bytes
            if size_bytes < 0 or stop > len(buffer):
                raise ProtocolViolation(f"the client id has the impossible length {size_bytes}")
            client_id = str(buffer[position:stop], "utf-8")
            position = stop
        if version >= api.flexible_from:
            is_plain = buffer[position] == 0  # no tagged fields, as nearly always
            position = position + 1 if is_plain else _skip_tagged_fields(buffer, position)
    except UnicodeDecodeError:
        raise ProtocolViolation("the client id is not UTF-8") from None
    except (struct.error, IndexError):
        raise ProtocolViolation("the bytes end inside the request header") from None
    return RequestHeader(api.key, version, correlation_id, client_id), position


def parse_response_header(
    key: ApiKey, version: int, buffer: Buffer, position: int = 0
) -> tuple[int, int]:
    """Read the header of a response; return correlation id and body position."""
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
    """Append the header of a response."""
    out += _CORRELATION_ID.pack(correlation_id)
    if version >= APIS[key].response_flexible_from:
        out.append(0)


def request_frame(header: RequestHeader, request: object) -> bytearray:
    """A whole request as it goes over the wire: length, header, body."""
    out = bytearray(_LENGTH.size)
    write_request_header(out, header)
    encode_into(out, request, header.api_version)
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return out


def response_frame(header: RequestHeader, response: object) -> bytearray:
    """A whole response as it goes over the wire: length, header, body."""
    out = bytearray(_LENGTH.size)
    write_response_header(out, header.api_key, header.api_version, header.correlation_id)
    encode_into(out, response, header.api_version)
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return out


def response_frame_in_slices(header: RequestHeader, response: object) -> Steps[bytearray]:
    """Like `response_frame`, in steps; `ResponseTooLarge` beyond the size that clients read."""
    out = bytearray(_LENGTH.size)
    write_response_header(out, header.api_key, header.api_version, header.correlation_id)
    for element_count in encode_in_slices(out, response, header.api_version):
        if len(out) > RESPONSE_BYTES_MAX:
            raise ResponseTooLarge(
                f"{header.api_key.name}: the response would be larger than"
                f" {RESPONSE_BYTES_MAX} bytes: request less at a time"
            )
        yield element_count
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


def _api(key: ApiKey, versions: str, flexible_from: int, module: str) -> Api:
    name = "".join(word.capitalize() for word in key.name.split("_"))
    headers_from = NEVER if key is ApiKey.API_VERSIONS else flexible_from
    return Api(key, name, parse_versions(versions), flexible_from, headers_from, module)


_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhih")  # key, version, correlation id, client id length

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        _api(ApiKey.PRODUCE, "3-13", 9, "produce"),
        _api(ApiKey.FETCH, "4-18", 12, "fetch"),
        _api(ApiKey.LIST_OFFSETS, "1-11", 6, "offsets"),
        _api(ApiKey.METADATA, "0-13", 9, "metadata"),
        _api(ApiKey.OFFSET_COMMIT, "2-10", 8, "group_offsets"),
        _api(ApiKey.OFFSET_FETCH, "1-10", 6, "group_offsets"),
        _api(ApiKey.FIND_COORDINATOR, "0-6", 3, "coordination"),
        _api(ApiKey.JOIN_GROUP, "0-9", 6, "classic_groups"),
        _api(ApiKey.HEARTBEAT, "0-4", 4, "classic_groups"),
        _api(ApiKey.LEAVE_GROUP, "0-5", 4, "classic_groups"),
        _api(ApiKey.SYNC_GROUP, "0-5", 4, "classic_groups"),
        _api(ApiKey.DESCRIBE_GROUPS, "0-6", 5, "classic_groups"),
        _api(ApiKey.LIST_GROUPS, "0-5", 3, "classic_groups"),
        _api(ApiKey.SASL_HANDSHAKE, "0-1", NEVER, "sasl"),
        _api(ApiKey.API_VERSIONS, "0-4", 3, "api_versions"),
        _api(ApiKey.CREATE_TOPICS, "2-7", 5, "topics"),
        _api(ApiKey.DELETE_TOPICS, "1-6", 4, "topics"),
        _api(ApiKey.DELETE_RECORDS, "0-2", 2, "topics"),
        _api(ApiKey.INIT_PRODUCER_ID, "0-5", 2, "producers"),
        _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "2-4", 4, "offsets"),
        _api(ApiKey.ADD_PARTITIONS_TO_TXN, "0-5", 3, "transactions"),
        _api(ApiKey.ADD_OFFSETS_TO_TXN, "0-4", 3, "transactions"),
        _api(ApiKey.END_TXN, "0-5", 3, "transactions"),
        _api(ApiKey.WRITE_TXN_MARKERS, "1-2", 1, "transactions"),
        _api(ApiKey.TXN_OFFSET_COMMIT, "0-5", 3, "transactions"),
        _api(ApiKey.DESCRIBE_ACLS, "1-3", 2, "acls"),
        _api(ApiKey.CREATE_ACLS, "1-3", 2, "acls"),
        _api(ApiKey.DELETE_ACLS, "1-3", 2, "acls"),
        _api(ApiKey.DESCRIBE_CONFIGS, "1-4", 4, "configs"),
        _api(ApiKey.ALTER_CONFIGS, "0-2", 2, "configs"),
        _api(ApiKey.ALTER_REPLICA_LOG_DIRS, "1-2", 2, "log_dirs"),
        _api(ApiKey.DESCRIBE_LOG_DIRS, "1-5", 2, "log_dirs"),
        _api(ApiKey.SASL_AUTHENTICATE, "0-2", 2, "sasl"),
        _api(ApiKey.CREATE_PARTITIONS, "0-3", 2, "topics"),
        _api(ApiKey.CREATE_DELEGATION_TOKEN, "1-3", 2, "delegation_tokens"),
        _api(ApiKey.RENEW_DELEGATION_TOKEN, "1-2", 2, "delegation_tokens"),
        _api(ApiKey.EXPIRE_DELEGATION_TOKEN, "1-2", 2, "delegation_tokens"),
        _api(ApiKey.DESCRIBE_DELEGATION_TOKEN, "1-3", 2, "delegation_tokens"),
        _api(ApiKey.DELETE_GROUPS, "0-2", 2, "classic_groups"),
        _api(ApiKey.ELECT_LEADERS, "0-2", 2, "placement"),
        _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", 1, "configs"),
        _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", 0, "placement"),
        _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "0", 0, "placement"),
        _api(ApiKey.OFFSET_DELETE, "0", NEVER, "group_offsets"),
        _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", 1, "quotas"),
        _api(ApiKey.ALTER_CLIENT_QUOTAS, "0-1", 1, "quotas"),
        _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0", 0, "sasl"),
        _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0", 0, "sasl"),
        _api(ApiKey.DESCRIBE_QUORUM, "0-2", 0, "quorum"),
        _api(ApiKey.UPDATE_FEATURES, "0-2", 0, "cluster"),
        _api(ApiKey.DESCRIBE_CLUSTER, "0-2", 0, "cluster"),
        _api(ApiKey.DESCRIBE_PRODUCERS, "0", 0, "producers"),
        _api(ApiKey.UNREGISTER_BROKER, "0", 0, "cluster"),
        _api(ApiKey.DESCRIBE_TRANSACTIONS, "0", 0, "transactions"),
        _api(ApiKey.LIST_TRANSACTIONS, "0-2", 0, "transactions"),
        _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", 0, "consumer_groups"),
        _api(ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", 0, "consumer_groups"),
        _api(ApiKey.LIST_CONFIG_RESOURCES, "0-1", 0, "configs"),
        _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0", 0, "metadata"),
        _api(ApiKey.SHARE_GROUP_HEARTBEAT, "1", 0, "share_groups"),
        _api(ApiKey.SHARE_GROUP_DESCRIBE, "1", 0, "share_groups"),
        _api(ApiKey.SHARE_FETCH, "1-2", 0, "share_groups"),
        _api(ApiKey.SHARE_ACKNOWLEDGE, "1-2", 0, "share_groups"),
        _api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, "0", 0, "share_state"),
        _api(ApiKey.READ_SHARE_GROUP_STATE, "0", 0, "share_state"),
        _api(ApiKey.WRITE_SHARE_GROUP_STATE, "0-1", 0, "share_state"),
        _api(ApiKey.DELETE_SHARE_GROUP_STATE, "0", 0, "share_state"),
        _api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "0-1", 0, "share_state"),
        _api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "0-1", 0, "share_group_offsets"),
        _api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "0", 0, "share_group_offsets"),
        _api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, "0", 0, "share_group_offsets"),
        _api(ApiKey.ADMIN_QUERY, "0", 0, "admin"),
    )
}

_KEYS: Final = {f"{api.name}Request": api.key for api in APIS.values()}
