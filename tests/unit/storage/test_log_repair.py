"""Epochs that do not fit the log, and damage that its readers find."""

import pytest

from fakes import build
from fakes.logs import SMALL
from fakes.memory_files import MemoryFiles
from ottla.model import (
    LeaderEpoch,
)
from ottla.storage.recovery_scan import EVERYTHING


def test_an_epoch_ends_where_the_next_begins(files: MemoryFiles) -> None:
    log = build.log(files)
    for epoch in (1, 1, 4, 4, 6):
        build.append(log, 2, epoch=epoch)
    assert [log.epoch_end(LeaderEpoch(epoch)) for epoch in (1, 2, 4, 5, 6, 7)] == [
        (1, 4),
        (1, 4),
        (4, 8),
        (4, 8),
        (6, 10),
        (-1, -1),
    ]


@pytest.mark.parametrize("lie", [b"0\n2\n1 0\n4 2\n", b"0\n2\n1 0\n5 4\n", b"0\n2\n1 0\n4 5\n"])
def test_an_epoch_file_that_contradicts_the_log_is_not_believed(
    files: MemoryFiles, lie: bytes
) -> None:
    log = build.log(files, SMALL)
    for epoch in (1, 1, 4, 4):
        build.append(log, 2, epoch=epoch, value=bytes(300))
    log.close()
    files.create(log.directory / "leader-epoch-checkpoint").append(lie)
    log = build.log(files, SMALL, recovery_point=EVERYTHING)
    assert log.epoch_end(LeaderEpoch(1)) == (1, 4)
    assert log.epochs.entries() == [(1, 0), (4, 4)]
