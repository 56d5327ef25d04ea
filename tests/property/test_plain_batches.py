"""Plain batches are placed in fewer steps, and land exactly where the general steps put them."""

from dataclasses import replace
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.config import TimestampType, TopicConfig
from ottla.errors import ApiError
from ottla.model import LeaderEpoch, TimestampMs
from ottla.records.batch import check_batch, check_plain, stamp_max_timestamp
from ottla.records.compression import Codec
from ottla.storage.log import Log
from ottla.storage.log_append import Appended

SMALL = TopicConfig(
    segment_bytes=1500,
    segment_ms=60_000,
    max_message_bytes=600,
    index_interval_bytes=200,
)
CONFIGS = (
    SMALL,
    replace(SMALL, timestamp_type=TimestampType.LOG_APPEND_TIME),
    replace(SMALL, compression_type="lz4"),
    replace(SMALL, cleanup_policy=("compact",)),
    replace(SMALL, max_message_bytes=120),
    replace(SMALL, timestamp_before_max_ms=7_200_000),
)


class Step(NamedTuple):
    """Something to append, as whom and when; or the settings to go on with."""

    batch: bytes
    epoch: LeaderEpoch
    now_ms: TimestampMs
    config: TopicConfig
    has_keys: bool


@st.composite
def damaged(draw: st.DrawFn, batch: bytearray) -> bytes:
    """Mostly as it is; else a byte is wrong, or the end is missing, or there is more."""
    harm = draw(st.sampled_from(("none", "none", "none", "byte", "cut", "more")))
    if harm == "byte":
        at = draw(st.integers(0, len(batch) - 1))
        batch[at] ^= draw(st.integers(1, 255))
    elif harm == "cut":
        del batch[draw(st.integers(0, len(batch))) :]
    elif harm == "more":
        batch += bytes(draw(st.integers(1, 3)))
    return bytes(batch)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    epoch, now_ms, config = 3, int(build.NOW_MS), SMALL
    taken = []
    sequence = 0
    for _ in range(draw(st.integers(1, 12))):
        epoch += draw(st.sampled_from((0, 0, 0, 1)))
        now_ms += draw(st.sampled_from((0, 1, 30_000, 60_000)))
        if draw(st.integers(0, 5)) == 0:
            config = draw(st.sampled_from(CONFIGS))
        count = draw(st.integers(1, 3))
        is_idempotent = draw(st.booleans()) and draw(st.booleans())
        has_keys = draw(st.booleans())
        batch = build.batch(
            count,
            key=b"key" if has_keys else None,
            value=bytes(draw(st.sampled_from((5, 100, 500)))),
            timestamp_ms=draw(
                st.sampled_from((now_ms, -1, now_ms + 7_200_000, now_ms - 7_200_001, 0))
            ),
            producer_id=7 if is_idempotent else -1,
            producer_epoch=0 if is_idempotent else -1,
            base_sequence=sequence if is_idempotent else -1,
            codec=draw(st.sampled_from((Codec.NONE, Codec.NONE, Codec.ZSTD))),
        )
        sequence += count * is_idempotent
        if draw(st.integers(0, 5)) == 0:
            stamp_max_timestamp(batch, draw(st.sampled_from((0, -1, now_ms - 5, 2**62))))
        step = Step(draw(damaged(batch)), LeaderEpoch(epoch), TimestampMs(now_ms), config, has_keys)
        taken.append(step)
    return taken


def append(log: Log, step: Step, *, shortly: bool) -> Appended | str:
    """What became of a batch: its place, or the refusal."""
    log.config = step.config if shortly else replace(step.config)  # unknown: no steps are left out
    batch = memoryview(bytearray(step.batch))
    try:
        return log.append_as_leader(
            batch, step.epoch, step.now_ms, has_keys=step.has_keys and shortly
        )
    except ApiError as refused:
        return repr(refused)


def content(files: MemoryFiles, log: Log) -> list[tuple[str, bytes]]:
    """Every file of a log, its indexes stored."""
    log.close()
    paths = [build.DIRECTORY / entry.name for entry in files.list(build.DIRECTORY)]
    return [(path.name, files.read_whole(path)) for path in paths]


@given(steps())
def test_short_and_general_steps_make_the_same_log(taken: list[Step]) -> None:
    short_files, general_files = MemoryFiles(), MemoryFiles()
    short, general = build.log(short_files, SMALL), build.log(general_files, SMALL)
    for step in taken:
        assert append(short, step, shortly=True) == append(general, step, shortly=False)
        assert short.end_offset == general.end_offset
        assert short.size_bytes == general.size_bytes
        assert short.epochs.entries() == general.epochs.entries()
    assert content(short_files, short) == content(general_files, general)


@given(st.data())
def test_a_plain_batch_is_an_intact_one_of_nobody(data: st.DataObject) -> None:
    producer_id = data.draw(st.sampled_from((-1, -1, 5)))
    sent = build.batch(
        data.draw(st.integers(1, 3)),
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        codec=data.draw(st.sampled_from(Codec)),
    )
    batch = data.draw(damaged(sent))
    plain = check_plain(batch)
    try:
        header = check_batch(batch)
    except ApiError:
        assert plain is None
    else:
        told = (header.last_offset_delta, header.base_timestamp_ms, header.max_timestamp_ms)
        assert plain == (told if header.producer_id < 0 else None)
