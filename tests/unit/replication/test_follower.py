"""A replica that follows: appends what its leader sends, and cuts off what the leader never had."""

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.config import Durability, TopicConfig
from ottla.errors import (
    CorruptBatch,
    ErrorCode,
    FencedLeaderEpoch,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from ottla.model import BrokerId, LeaderEpoch, Offset, Uuid
from ottla.protocol.hot_fetch import NO_WATERMARK
from ottla.protocol.messages.fetch import EpochEndOffset, FetchPartitionResponse
from ottla.replication.follower import FollowerPartition, ReplicaDiverged
from ottla.storage.log import Log
from ottla.storage.log_cut import Cut
from ottla.storage.log_follow import split_batches

TOPIC_ID = Uuid(bytes(range(16)))
OLD, NEW = LeaderEpoch(3), LeaderEpoch(5)


def leader(*epochs: LeaderEpoch, records: int = 2) -> Log:
    """A log with a batch of each epoch."""
    log = build.log(MemoryFiles(), TopicConfig())
    for epoch in epochs:
        log.append_as_leader(memoryview(build.batch(records)), epoch, build.NOW_MS)
    return log


def follower(
    log: Log | None = None, epoch: LeaderEpoch = NEW, unclean_epoch: int = -1
) -> FollowerPartition:
    return FollowerPartition(
        build.TP,
        TOPIC_ID,
        log or build.log(MemoryFiles(), TopicConfig()),
        leader=BrokerId(1),
        leader_epoch=epoch,
        unclean_epoch=LeaderEpoch(unclean_epoch),
        is_in_sync=True,
    )


def fetch(source: Log, followed: FollowerPartition, *, watermark: int = 0) -> bool:
    """Bring everything behind the follower's end, as a leader would send it."""
    found = source.read(followed.log.end_offset, source.end_offset, 1 << 20, at_least_one=True)
    response = FetchPartitionResponse(
        partition_index=0,
        high_watermark=watermark,
        log_start_offset=source.start_offset,
        records=source.read_bytes(found) if found is not None else None,
    )
    begun = followed.begin_cut(response, build.NOW_MS)
    if begun is not None:
        finish(followed, begun)
    return followed.take(response, build.NOW_MS)


def out_of_range(start: int) -> FetchPartitionResponse:
    return FetchPartitionResponse(
        partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start
    )


def diverging(epoch: int, end: int) -> FetchPartitionResponse:
    where = EpochEndOffset(epoch=epoch, end_offset=end)
    return FetchPartitionResponse(partition_index=0, diverging_epoch=where)


def cut(followed: FollowerPartition, response: FetchPartitionResponse) -> None:
    """Cut the log as a response demands."""
    begun = followed.begin_cut(response, build.NOW_MS)
    assert begun is not None
    finish(followed, begun)


def finish(followed: FollowerPartition, begun: Cut) -> None:
    begun.run()
    followed.log.truncation.end(begun)
    followed.end_cut(begun)


def content(log: Log) -> bytes:
    found = log.read(log.start_offset, log.end_offset, 1 << 20, at_least_one=True)
    return b"" if found is None else log.read_bytes(found)


def test_a_follower_becomes_the_same_log_byte_for_byte() -> None:
    source, followed = leader(OLD, OLD, NEW), follower()
    assert followed.request(0.0).last_fetched_epoch == -1
    assert fetch(source, followed)
    followed.log.flush()
    assert content(followed.log) == content(source)
    assert followed.log.epochs.entries() == source.epochs.entries()
    request = followed.request(0.0)
    assert (request.fetch_offset, request.last_fetched_epoch) == (6, NEW)
    assert not fetch(source, followed), "there is no more"


def test_a_log_that_starts_inside_of_a_batch_is_followed_from_the_whole_batch_on() -> None:
    source, followed = leader(OLD, OLD, records=4), follower()
    source.advance_start(Offset(6))
    cut(followed, out_of_range(6))
    assert fetch(source, followed, watermark=8)
    assert (followed.log.start_offset, followed.log.end_offset) == (6, 8)
    assert followed.high_watermark == 8
    assert content(followed.log) == content(source)


def test_a_fetch_says_only_what_is_on_disk_unless_the_topic_promises_less() -> None:
    followed = follower(leader(OLD))
    with pytest.raises(AssertionError, match="not on disk"):
        followed.request(0.0)
    followed.log.config = TopicConfig(durability=Durability.REPLICATED)
    assert followed.request(0.0).fetch_offset == 2
    followed.is_in_sync = False
    assert followed.promised_end == 0, "it does not count yet, and will not count for less"
    followed.log.flush()
    assert followed.promised_end == 2


def test_the_watermark_follows_the_leaders_and_does_not_pass_the_log() -> None:
    source, followed = leader(OLD, OLD), follower()
    fetch(source, followed, watermark=3)
    assert followed.high_watermark == 3
    fetch(source, followed, watermark=99)
    assert followed.high_watermark == 4
    fetch(source, followed, watermark=1)
    assert followed.high_watermark == 4, "a new leader may know less"


def test_what_the_leader_deleted_goes_as_far_as_it_is_committed() -> None:
    source, followed = leader(OLD, OLD), follower()
    fetch(source, followed, watermark=2)
    source.advance_start(Offset(4))
    fetch(source, followed, watermark=2)
    assert followed.log.start_offset == 2
    fetch(source, followed, watermark=4)
    assert followed.log.start_offset == 4


def test_a_leader_that_wrote_nothing_leaves_no_epoch_behind() -> None:
    log = leader(OLD)
    log.flush()
    log.epochs.note(LeaderEpoch(4), log.end_offset)
    assert follower(log).request(0.0).last_fetched_epoch == OLD


def test_what_the_leader_never_had_is_cut_off() -> None:
    followed = follower(leader(OLD, OLD, LeaderEpoch(4)))
    cut(followed, diverging(OLD, 2))
    assert followed.log.end_offset == 2
    assert followed.request(0.0).last_fetched_epoch == OLD


def test_the_shorter_of_two_ends_of_an_epoch_counts() -> None:
    followed = follower(leader(OLD, LeaderEpoch(4)))
    cut(followed, diverging(OLD, 100))
    assert followed.log.end_offset == 2


def test_nothing_committed_is_cut_off_without_an_unclean_election_since() -> None:
    log = leader(OLD, OLD)
    log.noted_watermark = Offset(3)
    followed = follower(log)
    with pytest.raises(ReplicaDiverged, match="committed"):
        followed.begin_cut(diverging(OLD, 2), build.NOW_MS)
    assert followed.log.end_offset == 4
    unclean = follower(log, unclean_epoch=NEW)
    cut(unclean, diverging(OLD, 2))
    assert (unclean.log.end_offset, unclean.high_watermark) == (2, 2)


def test_a_follower_far_behind_begins_where_the_leader_does() -> None:
    followed = follower(leader(OLD))
    cut(followed, out_of_range(50))
    assert (followed.log.start_offset, followed.log.end_offset) == (50, 50)
    assert followed.high_watermark == 50


@pytest.mark.parametrize(
    ("epochs", "of_leader"), [((NEW, OLD), NEW), ((NEW,), OLD)], ids=["falls", "from the future"]
)
def test_batches_of_impossible_epochs_are_refused(
    epochs: tuple[LeaderEpoch, ...], of_leader: LeaderEpoch
) -> None:
    followed = follower(epoch=of_leader)
    records = b"".join(
        bytes(build.batch(1, base_offset=offset, leader_epoch=epoch))
        for offset, epoch in enumerate(epochs)
    )
    response = FetchPartitionResponse(partition_index=0, records=records)
    with pytest.raises(CorruptBatch, match="epoch"):
        followed.take(response, build.NOW_MS)


def test_a_part_of_a_batch_is_refused() -> None:
    whole = bytes(build.batch(3))
    for size_bytes in (1, 60, len(whole) - 1, len(whole) + 10):
        part = (whole + whole)[:size_bytes]
        with pytest.raises(CorruptBatch, match="part of a batch"):
            list(split_batches(memoryview(part)))


@pytest.mark.parametrize("size_bytes", [1, 60, 70])
def test_an_empty_follower_refuses_a_part_of_a_batch_too(size_bytes: int) -> None:
    records = bytes(build.batch(3, leader_epoch=OLD))[:size_bytes]
    followed = follower()
    response = FetchPartitionResponse(partition_index=0, records=records)
    with pytest.raises(CorruptBatch, match="part of a batch"):
        followed.begin_cut(response, build.NOW_MS)
    assert not followed.is_being_cut


def test_consumers_read_what_is_known_to_be_committed() -> None:
    source, followed = leader(OLD, OLD), follower()
    woken: list[str] = []

    def wake() -> None:
        woken.append("once")

    followed.add_reader(wake)
    fetch(source, followed, watermark=2)
    assert (followed.readable_end(read_committed=False), woken) == (2, ["once"])
    fetch(source, followed, watermark=2)
    assert woken == ["once"], "no more is committed"
    followed.remove_reader(wake)
    fetch(source, followed, watermark=4)
    assert (followed.readable_end(read_committed=True), woken) == (4, ["once"])


def test_a_follower_does_not_say_that_there_is_nothing_above_its_end() -> None:
    source, followed = leader(OLD, OLD), follower()
    fetch(source, followed, watermark=4)
    for offset in (0, 4):
        followed.check_offset(offset)
    with pytest.raises(OffsetNotAvailable):
        followed.check_offset(5)
    source.advance_start(Offset(2))
    fetch(source, followed, watermark=4)
    with pytest.raises(OffsetOutOfRange):
        followed.check_offset(1)
    followed.check_epoch(-1)
    followed.check_epoch(NEW)
    with pytest.raises(FencedLeaderEpoch):
        followed.check_epoch(OLD)
    with pytest.raises(UnknownLeaderEpoch):
        followed.check_epoch(NEW + 1)


def test_a_follower_serves_nobody_while_its_leader_is_silent_or_refuses_it() -> None:
    source, followed = leader(OLD), follower()
    with pytest.raises(NotLeader):
        followed.note_read(100.0, lag_max_s=10.0)
    followed.contact.heard_s = 95.0
    followed.note_read(100.0, lag_max_s=10.0)
    with pytest.raises(NotLeader):
        followed.note_read(106.0, lag_max_s=10.0)
    followed.contact.heard_s = 106.0
    followed.is_refused = True
    with pytest.raises(NotLeader):
        followed.note_read(106.0, lag_max_s=10.0)
    fetch(source, followed)
    followed.note_read(106.0, lag_max_s=10.0)


def test_a_follower_that_is_read_asks_for_newer_watermarks() -> None:
    source, followed = leader(OLD), follower()
    fetch(source, followed, watermark=2)
    followed.log.flush()
    assert followed.request(100.0).high_watermark == NO_WATERMARK
    followed.contact.heard_s = 100.0
    followed.note_read(100.0, lag_max_s=10.0)
    assert followed.request(105.0).high_watermark == 2
    assert followed.request(111.0).high_watermark == NO_WATERMARK, "its consumers have gone"


def test_while_its_log_is_cut_a_follower_serves_nobody_and_knows_less() -> None:
    """A record is counted as committed no longer than the log says so."""
    source, followed = leader(OLD, OLD), follower(unclean_epoch=NEW)
    fetch(source, followed, watermark=4)
    followed.log.flush()
    followed.contact.heard_s = 100.0
    followed.note_read(100.0, lag_max_s=10.0)
    begun = followed.begin_cut(diverging(OLD, 2), build.NOW_MS)
    assert begun is not None
    assert followed.is_being_cut
    assert (followed.high_watermark, followed.log.noted_watermark) == (2, 2)
    with pytest.raises(NotLeader, match="being cut"):
        followed.note_read(100.0, lag_max_s=10.0)
    finish(followed, begun)
    followed.note_read(100.0, lag_max_s=10.0)
    assert (followed.high_watermark, followed.log.end_offset) == (2, 2)


def test_a_follower_that_begins_again_counts_as_committed_what_its_leader_deleted() -> None:
    """But only once it has: a cut may be given up."""
    source, followed = leader(OLD, OLD), follower()
    fetch(source, followed, watermark=2)
    followed.log.flush()
    for is_given_up in (True, False):
        begun = followed.begin_cut(out_of_range(50), build.NOW_MS)
        assert begun is not None
        assert followed.high_watermark == 2
        if is_given_up:
            followed.log.truncation.give_up(begun)
            followed.end_cut(begun)
            assert (followed.high_watermark, followed.log.end_offset) == (2, 4)
        else:
            finish(followed, begun)
    assert (followed.high_watermark, followed.log.start_offset) == (50, 50)


def test_a_response_that_is_refused_changes_nothing() -> None:
    log = leader(OLD, OLD)
    log.flush()
    log.noted_watermark = Offset(3)
    followed = follower(log)
    for response in (diverging(OLD, 2), out_of_range(1)):
        with pytest.raises(ReplicaDiverged, match="committed"):
            followed.begin_cut(response, build.NOW_MS)
    batch = build.batch(1, base_offset=2, leader_epoch=NEW)
    records = FetchPartitionResponse(partition_index=0, records=bytes(batch))
    assert followed.begin_cut(records, build.NOW_MS) is None
    with pytest.raises(CorruptBatch, match="written already"):
        followed.take(records, build.NOW_MS)
    assert not followed.is_being_cut
    assert (log.durable_offset, log.end_offset, followed.high_watermark) == (4, 4, 3)
    assert followed.begin_cut(FetchPartitionResponse(error_code=6), build.NOW_MS) is None


def test_a_response_that_has_nothing_to_cut_brings_nothing() -> None:
    source, followed = leader(OLD), follower()
    fetch(source, followed, watermark=1)
    response = diverging(NEW, 9)
    response.high_watermark = 2
    assert followed.begin_cut(response, build.NOW_MS) is None
    assert not followed.take(response, build.NOW_MS)
    assert (followed.high_watermark, followed.log.end_offset) == (1, 2)
