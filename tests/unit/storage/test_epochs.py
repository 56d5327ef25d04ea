"""Leader epochs: where one ends, and what the file says."""

from collections.abc import Callable

import pytest

from ottla.model import LeaderEpoch, Offset
from ottla.storage.epochs import Epochs, EpochsDamaged


def epochs(*entries: tuple[int, int]) -> Epochs:
    made = Epochs()
    for epoch, start in entries:
        made.note(LeaderEpoch(epoch), Offset(start))
    return made


def end(known: Epochs, epoch: int) -> tuple[int, int]:
    return known.end_of(LeaderEpoch(epoch), Offset(100))


def test_an_epoch_ends_where_the_next_begins() -> None:
    known = epochs((2, 0), (5, 40), (7, 70))
    assert end(known, 2) == (2, 40)
    assert end(known, 5) == (5, 70)
    assert end(known, 7) == (7, 100), "the latest ends with the log"


def test_for_an_unknown_epoch_the_largest_below_it_is_answered() -> None:
    known = epochs((2, 0), (5, 40), (7, 70))
    assert end(known, 4) == (2, 40)
    assert end(known, 6) == (5, 70)


def test_an_epoch_before_the_first_ends_where_the_first_begins() -> None:
    assert end(epochs((5, 40)), 3) == (3, 40)


@pytest.mark.parametrize("epoch", [-1, 8])
def test_of_the_future_and_of_none_nothing_is_known(epoch: int) -> None:
    assert end(epochs((7, 0)), epoch) == (-1, -1)
    assert end(Epochs(), 0) == (-1, -1)


def test_an_epoch_is_noted_once() -> None:
    assert epochs((2, 0), (2, 10)).entries() == [(2, 0)]


def test_what_a_new_entry_contradicts_is_forgotten() -> None:
    assert epochs((2, 0), (5, 40), (7, 70), (6, 50)).entries() == [(2, 0), (5, 40), (6, 50)]
    assert epochs((2, 0), (5, 40), (6, 40)).entries() == [(2, 0), (6, 40)]


def test_batches_without_an_epoch_change_nothing() -> None:
    assert epochs((-1, 0)).entries() == []


def test_the_epoch_of_an_offset_is_known() -> None:
    known = epochs((2, 10), (5, 40))
    assert [known.at(Offset(at)) for at in (9, 10, 39, 40)] == [-1, 2, 2, 5]


def test_a_truncated_log_forgets_later_epochs() -> None:
    known = epochs((2, 0), (5, 40))
    known.truncate_end(Offset(40))
    assert known.entries() == [(2, 0)]
    assert known.latest == 2
    known.truncate_end(Offset(0))
    assert known.latest == -1


def test_a_log_that_starts_later_keeps_the_epoch_it_starts_in() -> None:
    known = epochs((2, 0), (5, 40), (7, 70))
    known.truncate_start(Offset(50))
    assert known.entries() == [(5, 50), (7, 70)]
    known.truncate_start(Offset(70))
    assert known.entries() == [(7, 70)]


def test_the_file_is_in_kafkas_format() -> None:
    data = epochs((2, 0), (5, 40)).encode()
    assert data == b"0\n2\n2 0\n5 40\n"
    assert Epochs.decode(data).entries() == [(2, 0), (5, 40)]
    assert Epochs.decode(Epochs().encode()).entries() == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n2\n2 0\n5 40",
        b"0\n3\n2 0\n5 40\n",
        b"1\n1\n2 0\n",
        b"0\n1\n2\n",
        b"0\n1\n2 x\n",
        b"0\n2\n5 40\n2 0\n",
        b"0\n2\n2 40\n5 0\n",
        b"0\n1\n-2 0\n",
        b"0\n1\n\xff 0\n",
        bytes(20),
    ],
)
def test_a_file_that_cannot_be_true_is_not_believed(data: bytes) -> None:
    with pytest.raises(EpochsDamaged):
        Epochs.decode(data)


def test_what_is_encoded_follows_every_change() -> None:
    epochs = Epochs()
    seen = [epochs.encode()]
    for epoch, start in ((2, 0), (5, 40), (7, 60)):
        epochs.note(LeaderEpoch(epoch), Offset(start))
        seen.append(epochs.encode())
    epochs.truncate_end(Offset(60))
    seen.append(epochs.encode())
    epochs.truncate_start(Offset(50))
    seen.append(epochs.encode())
    assert [data.decode().split("\n", 2)[2] for data in seen] == [
        "",
        "2 0\n",
        "2 0\n5 40\n",
        "2 0\n5 40\n7 60\n",
        "2 0\n5 40\n",
        "5 50\n",
    ]


def test_a_log_that_starts_before_its_first_epoch_keeps_all() -> None:
    known = epochs((2, 10), (5, 40))
    known.truncate_start(Offset(9))
    assert known.entries() == [(2, 10), (5, 40)]
    Epochs().truncate_start(Offset(9))


def test_the_content_of_the_file_is_made_once_for_as_long_as_nothing_changes() -> None:
    known = epochs((2, 10), (5, 40))
    content = known.encode()
    assert known.encode() is content
    changes: list[Callable[[], None]] = [
        lambda: known.truncate_start(Offset(20)),
        lambda: known.note(LeaderEpoch(7), Offset(70)),
        lambda: known.truncate_end(Offset(50)),
    ]
    for change in changes:
        before = known.encode()
        change()
        assert known.encode() != before
        assert Epochs.decode(known.encode()).entries() == known.entries()
