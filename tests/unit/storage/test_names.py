"""Names that are exactly ours, and names that only look like it."""

import pytest

from ottla.model import Offset, TopicPartition
from ottla.storage.compaction import CLEAN_OFFSET_FILE
from ottla.storage.damages import CORRUPT_FILE
from ottla.storage.names import (
    METADATA_FILE,
    TEMPORARY,
    StrayName,
    deleted_name,
    is_deleted_dir,
    is_log_file,
    parse_log_dir,
    parse_stray,
    stray_name,
)
from ottla.storage.recovery import EPOCHS_FILE
from ottla.storage.segment import (
    CLEANED,
    DELETED,
    SEGMENT_SUFFIXES,
    SIDE_SUFFIXES,
    SNAPSHOT,
    SWAP,
    file_name,
)

UNIQUE = f"{7:032x}"


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("orders-0", TopicPartition("orders", 0)),
        ("web-clicks-12", TopicPartition("web-clicks", 12)),
        ("a-2147483647", TopicPartition("a", 2147483647)),
        ("a-2147483648", None),
        ("orders-00", None),
        ("orders-٣", None),
        ("orders", None),
        ("-0", None),
        ("..-0", None),
        ("ord ers-0", None),
        ("a" * 250 + "-0", None),
        (f"orders-0.{UNIQUE}-delete", None),
    ],
)
def test_a_log_is_named_after_its_partition(name: str, tp: TopicPartition | None) -> None:
    assert parse_log_dir(name) == tp


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        (f"orders-0.{UNIQUE}-delete", True),
        ("photos-delete", False),
        (f"orders-0.{UNIQUE.upper()[:-1]}G-delete", False),
        (f"orders-0.{UNIQUE}-delete2", False),
        (f"my orders-0.{UNIQUE}-delete", False),
    ],
)
def test_a_deleted_log_is_recognised_by_its_exact_name(name: str, is_ours: bool) -> None:
    assert is_deleted_dir(name) is is_ours


@pytest.mark.parametrize("topic", ["orders", "a-0", "a" * 249])
def test_what_is_deleted_or_set_aside_has_a_name_that_file_systems_take(topic: str) -> None:
    tp = TopicPartition(topic, 2147483647)
    deleted, stray = deleted_name(tp, 2**128 - 1), stray_name(str(tp), {})
    assert is_deleted_dir(deleted)
    assert max(len(deleted), len(stray)) <= 255
    found = parse_stray(stray)
    assert found is not None
    assert found == StrayName(found.topic, 2147483647, is_cut=found.topic != topic)
    assert topic.startswith(found.topic)


def test_strays_of_one_partition_have_different_names() -> None:
    taken = set[str]()
    for _ in range(3):
        taken.add(stray_name("orders-0", taken))
    assert taken == {f"orders-0.{number:032x}-stray" for number in range(3)}


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        (f"{0:020d}.log", True),
        (f"{0:020d}.txnindex.cleaned", True),
        (f"{0:020d}.log.swap.stray", True),
        (f"{5:020d}.snapshot.tmp", True),
        (f"{5:020d}.index.saving", True),
        (f"{5:020d}.saving", False),
        ("leader-epoch-checkpoint", True),
        ("partition.metadata.tmp", True),
        ("5.log", False),
        (f"{0:020d}.log.bak", False),
        (f"{0:021d}.log", False),
        ("notes.tmp", False),
        ("important.deleted", False),
        (".partition.metadata.swp", False),
    ],
)
def test_a_file_of_a_log_is_recognised_by_its_exact_name(name: str, is_ours: bool) -> None:
    assert is_log_file(name) is is_ours


def test_every_file_that_storage_makes_in_a_log_s_directory_is_known() -> None:
    segment = [
        file_name(Offset(7), suffix + state)
        for suffix in (*SEGMENT_SUFFIXES, *SIDE_SUFFIXES)
        for state in ("", CLEANED, SWAP, DELETED, TEMPORARY)
    ]
    single = [METADATA_FILE, EPOCHS_FILE, CORRUPT_FILE, CLEAN_OFFSET_FILE]
    made = [*segment, file_name(Offset(7), SNAPSHOT), *single, *(one + TEMPORARY for one in single)]
    assert [name for name in made if not is_log_file(name)] == []
