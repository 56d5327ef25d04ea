"""Requests and responses of etcd's JSON gateway as values of the store.

Keys and values are base64 text, 64-bit numbers are decimal text, and a field that has its default
value (0, false, empty) is left out.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Union

from ottla.cluster.store import (
    ChangeBatch,
    Compare,
    Delete,
    Entry,
    KeyChange,
    Revision,
    StoreUnavailable,
    Write,
)

Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]  # noqa: UP007
JsonObject = dict[str, Json]

FIRST_REVISION: Final = Revision(1)  # of an etcd that nothing was written to


class EndpointFailed(StoreUnavailable):
    """A single server did not respond as it should; another may."""


class MalformedResponse(EndpointFailed):
    """A response with status 200 that etcd does not send."""


@dataclass(frozen=True, slots=True)
class Message:
    """A JSON object, read with the types that etcd's fields have; absent fields are empty."""

    fields: Mapping[str, Json]

    @classmethod
    def parse(cls, data: bytes) -> "Message":
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise MalformedResponse("etcd sent a response that is not JSON") from problem
        if not isinstance(found, dict):
            raise MalformedResponse("etcd sent a response that is no JSON object")
        return cls(found)

    def number(self, name: str) -> int:
        value = self.fields.get(name, 0)
        try:
            return int(value) if isinstance(value, str) else _integer(name, value)
        except ValueError as problem:
            raise _malformed(name, value) from problem

    def text(self, name: str) -> str:
        value = self.fields.get(name, "")
        if not isinstance(value, str):
            raise _malformed(name, value)
        return value

    def texts(self, name: str) -> list[str]:
        value = self.fields.get(name, [])
        if not isinstance(value, list):
            raise _malformed(name, value)
        return [str(one) for one in value]

    def flag(self, name: str) -> bool:
        return self.fields.get(name, False) is True

    def data(self, name: str) -> bytes:
        """The bytes of a field in base64."""
        try:
            return base64.b64decode(self.text(name), validate=True)
        except binascii.Error as problem:
            raise _malformed(name, self.fields[name]) from problem

    def message(self, name: str) -> "Message":
        value = self.fields.get(name, {})
        if not isinstance(value, dict):
            raise _malformed(name, value)
        return Message(value)

    def messages(self, name: str) -> list["Message"]:
        value = self.fields.get(name, [])
        if not isinstance(value, list):
            raise _malformed(name, value)
        return [_item(name, item) for item in value]


@dataclass(frozen=True, slots=True)
class Keyspace:
    """The keys below a prefix: the store's keys without it, etcd's with it."""

    prefix: str

    def range_request(self, prefix: str, limit: int) -> JsonObject:
        """Every key with `prefix`, at most `limit`, in order, at the newest revision."""
        return {**self._keys(prefix), "limit": limit}

    def next_page(self, page: JsonObject, last_key: str, revision: Revision) -> JsonObject:
        """The request for the page behind `last_key`, as it was at `revision`."""
        return {**page, "key": self._key(last_key + "\0"), "revision": str(revision)}

    def get_request(self, key: str) -> JsonObject:
        return {"key": self._key(key)}

    def probe_request(self) -> JsonObject:
        """A linearizable read of a key that need not exist, for the header of its response."""
        return {"key": self._key(""), "keys_only": True}

    def commit_request(self, writes: Sequence[Write], compares: Sequence[Compare]) -> JsonObject:
        # Without an operation a server would compare by itself, and might be behind the others.
        operations: list[Json] = [self._write(write) for write in writes]
        return {
            "compare": [self._compare(compare) for compare in compares],
            "success": operations or [{"request_range": self.probe_request()}],
        }

    def watch_request(self, prefix: str, after: Revision) -> JsonObject:
        """A watch that begins with `after` itself, which `batches` leaves out.

        etcd lets a watch begin exactly at the compacted revision, though deletions of that
        revision may be gone (its issues 18089 and 19179); from one earlier it refuses.
        """
        start = max(after, FIRST_REVISION)
        return {"create_request": {**self._keys(prefix), "start_revision": str(start)}}

    def entries(self, response: Message) -> list[Entry]:
        return [
            Entry(self._name(kv), kv.data("value"), Revision(kv.number("mod_revision")))
            for kv in response.messages("kvs")
        ]

    def batches(self, response: Message, after: Revision) -> Iterator[ChangeBatch]:
        """The changes of each revision later than `after`; all of a revision are in one message."""
        changes = [self._change(event) for event in response.messages("events")]
        for revision, group in groupby(changes, key=lambda pair: pair[0]):
            if revision > after:
                yield ChangeBatch(revision, tuple(change for _, change in group))

    def _keys(self, prefix: str) -> JsonObject:
        begin = (self.prefix + prefix).encode()
        # UTF-8 has no byte 0xff: the last one can always be raised.
        end = begin[:-1] + bytes([begin[-1] + 1])
        return {"key": _base64(begin), "range_end": _base64(end)}

    def _key(self, key: str) -> str:
        return _base64((self.prefix + key).encode())

    def _name(self, kv: Message) -> str:
        key = kv.data("key")
        try:
            name = key.decode()
        except UnicodeDecodeError as problem:
            raise StoreUnavailable(
                f"etcd has a key below {self.prefix!r} that Ottla did not write: {key!r}; remove it"
            ) from problem
        if not name.startswith(self.prefix):
            raise MalformedResponse(f"etcd sent the key {name!r}, which was not asked for")
        return name[len(self.prefix) :]

    def _compare(self, compare: Compare) -> JsonObject:
        return {
            "key": self._key(compare.key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(compare.mod_revision),
        }

    def _write(self, write: Write) -> JsonObject:
        if isinstance(write, Delete):
            return {"request_delete_range": {"key": self._key(write.key)}}
        put: JsonObject = {"key": self._key(write.key), "value": _base64(write.value)}
        if write.lease is not None:
            put["lease"] = str(write.lease)
        return {"request_put": put}

    def _change(self, event: Message) -> tuple[Revision, KeyChange]:
        kv = event.message("kv")
        value = None if event.text("type") == "DELETE" else kv.data("value")
        return Revision(kv.number("mod_revision")), KeyChange(self._name(kv), value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _integer(name: str, value: Json) -> int:
    if not isinstance(value, int):
        raise _malformed(name, value)
    return value


def _item(name: str, value: Json) -> Message:
    if not isinstance(value, dict):
        raise _malformed(name, value)
    return Message(value)


def _malformed(name: str, value: Json) -> MalformedResponse:
    return MalformedResponse(f"etcd sent the field {name!r} as {str(value)[:100]!r}")
