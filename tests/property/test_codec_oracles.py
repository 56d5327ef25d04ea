"""Byte for byte what other implementations read and write, for every message in every version."""

from collections.abc import Callable
from typing import Any

import pytest

from fakes.layouts import Layout, api_layouts, layouts_of
from fakes.oracles import Opinion, ask_kafka_python, ask_kio, kio_defaults
from fakes.random_messages import RandomMessages
from ottla.protocol.api import APIS, PRIVATE, Api
from ottla.protocol.codec import decode, encode
from ottla.protocol.hot_fetch import REPLICA_TOKEN_TAG
from ottla.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from ottla.protocol.schema import Array, WireField, wire_fields

MESSAGES_PER_LAYOUT = 20
Oracle = Callable[[str, int, bytes], Opinion | None]
KAFKAS = [api for api in APIS.values() if api.key not in PRIVATE]
every_api = pytest.mark.parametrize("api", KAFKAS, ids=lambda api: api.name)


@every_api
def test_kio_reads_what_we_write_and_writes_what_we_read(api: Api) -> None:
    for layout in api_layouts(api):
        compared = _compare(layout, ask_kio, MESSAGES_PER_LAYOUT)
        assert compared == MESSAGES_PER_LAYOUT, f"kio does not know {layout}"


@every_api
def test_kio_states_the_same_defaults(api: Api) -> None:
    for layout in api_layouts(api):
        stated = _renamed(kio_defaults(layout.message_class.__name__, layout.version))
        assert _only(_defaults(layout.message_class, layout.version), stated) == stated, layout


@every_api
def test_kafka_python_agrees_where_it_knows_the_message(api: Api) -> None:
    for layout in api_layouts(api):
        _compare(layout, ask_kafka_python, MESSAGES_PER_LAYOUT // 4)


def test_kafka_python_knows_most_layouts_so_that_its_agreement_means_something() -> None:
    known = sum(
        _compare(layout, ask_kafka_python, 1) for api in KAFKAS for layout in api_layouts(api)
    )
    assert known >= 450


@pytest.mark.parametrize(
    "message_class", [ConsumerProtocolSubscription, ConsumerProtocolAssignment]
)
def test_kio_agrees_on_what_consumers_put_into_group_messages(message_class: type[Any]) -> None:
    for layout in layouts_of(message_class):
        assert _compare(layout, ask_kio, MESSAGES_PER_LAYOUT) == MESSAGES_PER_LAYOUT


def _compare(layout: Layout, ask: Oracle, count: int) -> int:
    """Compare random messages of one layout; return how many the oracle had an opinion on."""
    messages = RandomMessages(seed=layout.version)
    compared = 0
    for _ in range(count):
        message = messages.message(*layout)
        _leave_out_ours(message)
        wire = encode(message, layout.version)
        opinion = ask(layout.message_class.__name__, layout.version, wire)
        if opinion is None:
            break
        assert opinion.rewritten == wire, layout
        if opinion.tree is not None:
            assert _renamed(opinion.tree) == _renamed(_tree(message, layout.version)), layout
        assert decode(*layout, opinion.rewritten) == message, layout
        compared += 1
    return compared


def _leave_out_ours(message: object) -> None:
    """Give Ottla's own fields their defaults, in structs inside the message too."""
    for item in wire_fields(type(message)):
        kind, value = item.wire.kind, getattr(message, item.name)
        if _is_ours(item):
            setattr(message, item.name, item.make_default())
        elif isinstance(kind, Array) and isinstance(kind.element, type):
            for element in value or ():
                _leave_out_ours(element)
        elif isinstance(kind, type) and value is not None:
            _leave_out_ours(value)


def _defaults(struct_class: type, version: int) -> dict[str, Any]:
    """What each field of a version holds when left out; for structs, what their fields hold."""
    defaults: dict[str, Any] = {}
    for item in wire_fields(struct_class):
        kind = item.wire.kind.element if isinstance(item.wire.kind, Array) else item.wire.kind
        if version in item.wire.versions and not _is_ours(item):
            inner = _defaults(kind, version) if isinstance(kind, type) else item.make_default()
            defaults[item.name] = inner
    renamed: dict[str, Any] = _renamed(defaults)
    return renamed


def _only(tree: Any, wanted: Any) -> Any:
    """The part of a tree that another one also has."""
    if not isinstance(wanted, dict):
        return tree
    return {name: _only(tree[name], value) for name, value in wanted.items()}


def _tree(value: Any, version: int) -> Any:
    """A message as nested dictionaries and lists, with only the fields of a version."""
    if isinstance(value, list):
        return [_tree(item, version) for item in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    return {
        item.name: _tree(getattr(value, item.name), version)
        for item in wire_fields(type(value))
        if version in item.wire.versions and not _is_ours(item)
    }


def _is_ours(item: WireField) -> bool:
    """True for a field that Kafka does not have."""
    return item.wire.tag is not None and item.wire.tag >= REPLICA_TOKEN_TAG


def _renamed(tree: Any) -> Any:
    """Forget how kio spells things: it drops `_ms` where it has a type for durations."""
    match tree:
        case dict():
            return {name.removesuffix("_ms"): _renamed(value) for name, value in tree.items()}
        case list():
            return [_renamed(item) for item in tree]
        case bytes():
            return None if tree == bytes(16) else tree  # kio reads the zero id as None
        case _:
            return tree
