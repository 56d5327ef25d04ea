"""Topics inside the opaque bytes of a join."""

import pytest

from fakes.group_members import subscription
from ottla.coordinator.subscription import subscribed_topics


def test_topics_are_found_in_every_version() -> None:
    said = subscription("a", "b", owned={"a": [0]})
    assert subscribed_topics(said) == frozenset({"a", "b"})
    assert subscribed_topics(b"\x00\x00" + said[2:]) == frozenset({"a", "b"})


def test_a_version_of_the_future_is_read_as_far_as_it_is_known() -> None:
    version_3 = b"\x00\x00\x00\x01\x00\x01a\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff"
    assert subscribed_topics(b"\x00\x09" + version_3 + b"more") == frozenset({"a"})


@pytest.mark.parametrize(
    "said", [b"", b"\x00", b"\x00\x01", b"\xff\xff", b"\x00\x01\x7f\xff\xff\xff"]
)
def test_other_bytes_say_nothing(said: bytes) -> None:
    assert subscribed_topics(said) is None
