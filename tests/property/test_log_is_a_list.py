"""A log is a list: whatever happens to it, it holds what a list would hold."""

from itertools import pairwise
from random import Random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.logs import segments_of
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.model import LeaderEpoch, Offset
from ottla.records.batch import batches, records
from ottla.storage.log import Log
from ottla.storage.recovery_scan import EVERYTHING
from sizes import examples

CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=150)


class LogMachine(RuleBasedStateMachine):
    """The model is a list of (value, epoch), one per offset, and how much of it is durable."""

    @initialize()
    def begin(self) -> None:
        self.files = MemoryFiles()
        self.model: list[tuple[bytes, int]] = []
        self.start = 0
        self.recovery_point = 0
        self.epoch = 0
        self.number = 0
        self.open(0)

    def open(self, recovery_point: int) -> None:
        listener = FakeLogListener()
        self.log = build.log(
            self.files,
            CONFIG,
            recovery_point=recovery_point,
            start_offset=self.start,
            listener=listener,
        )
        listener.on_truncate = self.note_recovery_point

    def note_recovery_point(self) -> None:
        self.recovery_point = self.log.durable_offset
        self.log.flushing.note_checkpoint(Offset(self.recovery_point))

    def value(self, size: int) -> bytes:
        self.number += 1
        return b"%06d" % self.number + bytes(size)

    @rule(count=st.integers(1, 5), size=st.integers(0, 200))
    def append_as_leader(self, count: int, size: int) -> None:
        value = self.value(size)
        assert build.append(self.log, count, epoch=self.epoch, value=value) == len(self.model)
        self.model += [(value, self.epoch)] * count

    @rule(count=st.integers(1, 5), size=st.integers(0, 200))
    def append_as_follower(self, count: int, size: int) -> None:
        value = self.value(size)
        batch = build.batch(
            count, value=value, base_offset=len(self.model), leader_epoch=self.epoch
        )
        self.log.append_as_follower(batch, build.NOW_MS)
        self.model += [(value, self.epoch)] * count

    @rule(step=st.integers(1, 3))
    def change_leader(self, step: int) -> None:
        self.epoch += step

    @rule()
    def roll(self) -> None:
        self.log.roll(build.NOW_MS)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.durable_offset == len(self.model)

    @rule()
    def release_files(self) -> None:
        is_on_disk = self.log.durable_offset == self.log.end_offset
        assert self.log.release_files() <= is_on_disk, "unsynced data was let go of"

    @rule()
    def checkpoint(self) -> None:
        self.log.flushing.save()
        self.note_recovery_point()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        to_offset = self.start + int(share * (len(self.model) - self.start))
        whole = [at for at in self.batch_starts() if at <= to_offset]
        self.log.truncate(Offset(to_offset), build.NOW_MS)
        if to_offset < len(self.model):
            del self.model[whole[-1] if whole else to_offset :]
            self.start = min(self.start, len(self.model))

    @rule(
        share=st.floats(0, 1),
        fate=st.sampled_from(["given up", "killed before", "run", "killed behind"]),
        is_flushed=st.booleans(),
    )
    def cut_in_parts(self, share: float, fate: str, is_flushed: bool) -> None:
        """What other users of the log do meanwhile does not matter."""
        to_offset = self.start + int(share * (len(self.model) - self.start))
        whole = [at for at in self.batch_starts() if at <= to_offset]
        flush = self.log.flushing.begin()
        cut = self.log.truncation.begin(Offset(to_offset), build.NOW_MS)
        if cut is None:
            return
        self.log.flushing.save()
        if cut.needs_checkpoint:
            self.note_recovery_point()
        if flush is not None and is_flushed:
            flush.run(self.files)
            self.log.flushing.end(flush)
        assert not self.log.release_files()
        if fate in ("run", "killed behind"):
            cut.run()
            del self.model[whole[-1] if whole else to_offset :]
            self.start = min(self.start, len(self.model))
        if fate == "run":
            self.log.truncation.end(cut)
        elif fate == "given up":
            self.log.truncation.give_up(cut)
        else:
            self.kill_and_open()
        if flush is not None and not is_flushed and not fate.startswith("killed"):
            flush.run(self.files)
            self.log.flushing.end(flush)

    @rule(share=st.floats(0, 1))
    def advance_start(self, share: float) -> None:
        self.start += int(share * (len(self.model) - self.start))
        self.log.advance_start(Offset(self.start))

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.files = self.files.kill()
        self.open(EVERYTHING)
        assert self.log.end_offset == len(self.model)

    @rule()
    def kill_and_open(self) -> None:
        self.files = self.files.kill()
        self.open(self.recovery_point)
        assert self.log.end_offset == len(self.model)

    @rule(seed=st.integers(0, 2**32))
    def cut_power_and_open(self, seed: int) -> None:
        durable = self.log.durable_offset
        self.files = self.files.cut_power(Random(seed))
        self.open(self.recovery_point)
        assert durable <= self.log.end_offset <= len(self.model)
        assert self.start <= self.log.end_offset, "what has been deleted stays deleted"
        assert not self.log.corrupt
        del self.model[self.log.end_offset :]

    @precondition(lambda self: self.start < len(self.model))
    @rule(share=st.floats(0, 0.999), bytes_max=st.integers(1, 1500), length=st.floats(0, 1))
    def read_anywhere(self, share: float, bytes_max: int, length: float) -> None:
        start = self.start + int(share * (len(self.model) - self.start))
        end = start + int(length * (len(self.model) - start))
        found = self.log.read(Offset(start), Offset(end), bytes_max, at_least_one=True)
        if found is None:
            assert not [at for at in self.batch_starts() if start < at <= end] or end <= start
            return
        data = self.log.read_bytes(found)
        whole = list(batches(data))
        assert sum(len(view) for _, view in whole) == found.size_bytes
        assert len(whole) == 1 or found.size_bytes <= bytes_max
        assert whole[0][0].base_offset <= start <= whole[0][0].last_offset
        assert whole[-1][0].next_offset == found.end_offset <= end

    def batch_starts(self) -> list[int]:
        """Offsets at which a batch begins, and the log's end."""
        values = [value for value, _ in self.model]
        starts = [at for at in range(len(values)) if at == 0 or values[at] != values[at - 1]]
        return [*starts, len(values)]

    @invariant()
    def the_log_holds_what_the_list_holds(self) -> None:
        assert self.log.end_offset == len(self.model)
        assert self.log.start_offset == self.start
        assert read_all(self.log) == self.model[self.start :]

    @invariant()
    def epochs_are_those_of_the_records(self) -> None:
        for epoch, start in self.log.epochs.entries():
            assert start <= len(self.model)
            if start < len(self.model):
                assert self.model[start][1] == epoch
        if self.model[self.start :]:
            last = LeaderEpoch(self.model[-1][1])
            assert self.log.epoch_end(last) == (last, len(self.model))

    @invariant()
    def segments_touch_and_do_not_overlap(self) -> None:
        segments = segments_of(self.log)
        for before, after in pairwise(segments):
            assert before.end_offset == after.base_offset
        assert self.log.size_bytes == sum(segment.size_bytes for segment in segments)


def read_all(log: Log) -> list[tuple[bytes, int]]:
    """Every record from the log's start to its end, with its epoch."""
    found: list[tuple[bytes, int]] = []
    offset = log.start_offset
    while (part := log.read(offset, log.end_offset, 300, at_least_one=True)) is not None:
        for header, view in batches(log.read_bytes(part)):
            for record in records(view):
                if record.offset >= log.start_offset:
                    assert record.offset == log.start_offset + len(found)
                    assert record.value is not None
                    found.append((record.value, header.leader_epoch))
        offset = part.end_offset
    return found


LogMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, report_multiple_bugs=False
)
TestALogIsAList = LogMachine.TestCase
