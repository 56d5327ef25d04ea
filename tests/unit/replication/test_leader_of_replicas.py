"""The leader of a replicated partition: what is committed, and who is in sync."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fakes import build
from fakes.cluster_images import broker
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.cluster.controller.leaders import IsrChange
from ottla.cluster.values import BrokerImage
from ottla.config import Durability, TopicConfig
from ottla.errors import ApiError, NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeader
from ottla.model import BrokerId, LeaderEpoch, Offset, ProducerEpoch, ProducerId
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.partition import ACKS_ALL, ACKS_LEADER
from ottla.storage.log import Log

HERE, ONE, TWO = (BrokerId(number) for number in range(3))
EPOCH = 7  # of the registrations of all followers
NEVER_S = -1.0
CONFIG = TopicConfig(durability=Durability.REPLICATED, min_insync_replicas=2)


class NoFlusher:
    def request(self, log: Log) -> None:
        return


class Watcher:
    """Notes what it is notified of, with its name."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    def note_appended(self) -> None:
        self._notes.append(f"{self._name}: appended")

    def note_committed(self) -> None:
        self._notes.append(f"{self._name}: committed")

    def note_changed(self) -> None:
        self._notes.append(f"{self._name}: changed")


class Led:
    """A partition with two followers, which the test drives."""

    def __init__(
        self,
        *isr: BrokerId,
        config: TopicConfig = CONFIG,
        before: int = 0,
        watermark: int | None = None,
    ) -> None:
        """`before` records are in the log from earlier leaders."""
        self.log = build.log(MemoryFiles(), config)
        for _ in range(before):
            build.append(self.log)
        if watermark is not None:
            self.log.noted_watermark = Offset(watermark)
        self.wanted_count = 0
        self.woken: list[str] = []
        self.settled: list[ApiError | None] = []
        self.partition = led_partition(
            build.TP,
            self.log,
            broker_id=HERE,
            leader_epoch=build.EPOCH,
            replicas=(HERE, ONE, TWO),
            isr=(HERE, *isr),
            flusher=NoFlusher(),
            soon=lambda callback: callback(),
            want_isr_change=self._want,
        )
        self.partition.watchers.watch_appends(Watcher("follower", self.woken))
        self.partition.watchers.watch_commits(Watcher("consumer", self.woken))

    def _want(self) -> None:
        self.wanted_count += 1

    def append(self, acks: int = ACKS_ALL) -> Offset:
        batch = memoryview(build.batch())
        receipt = self.partition.append(batch, acks, build.NOW_MS)
        if not receipt.is_settled:
            self.partition.wait_settled(receipt.end_offset, acks, self.settled.append)
        return receipt.end_offset

    def fetch(
        self, follower: BrokerId, offset: int, *, now_s: float = 0.0, epoch: int = EPOCH
    ) -> None:
        self.partition.note_fetch(follower, epoch, Offset(offset), now_s)

    def begin(self, caught_up_s_min: float = NEVER_S) -> IsrChange | None:
        return self.partition.begin_isr_change(live(), caught_up_s_min)

    def commit(self, *isr: BrokerId, elr: tuple[BrokerId, ...] = ()) -> None:
        """The store has this ISR now."""
        image = self.partition.image
        epoch = image.partition_epoch + 1
        self.partition.note_image(
            replace(image, isr=(HERE, *isr), elr=elr, partition_epoch=epoch, is_new=False), 0.0
        )


def live() -> Mapping[BrokerId, BrokerImage]:
    return {one: replace(broker(one), epoch=EPOCH) for one in (HERE, ONE, TWO)}


# What is committed


def test_a_record_is_committed_once_every_replica_in_sync_has_it() -> None:
    led = Led(ONE, TWO)
    led.append()
    assert led.partition.high_watermark == 0
    led.fetch(ONE, 1)
    assert led.partition.high_watermark == 0
    led.fetch(TWO, 1)
    assert (led.partition.high_watermark, led.settled) == (1, [None])


def test_a_replica_that_is_not_in_sync_is_not_waited_for() -> None:
    led = Led(ONE)
    led.append()
    led.fetch(ONE, 1)
    assert led.partition.high_watermark == 1


def test_a_leader_with_fsync_waits_for_its_own_disk_too() -> None:
    led = Led(ONE, config=replace(CONFIG, durability=Durability.FSYNC))
    led.append()
    led.fetch(ONE, 1)
    assert led.partition.high_watermark == 0
    led.log.flush()
    led.partition.note_progress()
    assert led.partition.high_watermark == 1


def test_acks_of_the_leader_alone_do_not_wait_for_followers() -> None:
    led = Led(ONE, TWO)
    led.append(ACKS_LEADER)
    assert led.settled == []
    assert led.partition.high_watermark == 0


def test_followers_hear_of_appends_and_consumers_of_commits() -> None:
    led = Led(ONE)
    led.append()
    assert led.woken == ["follower: appended"]
    led.fetch(ONE, 1)
    assert led.woken[1:] == ["follower: committed", "consumer: committed"]


def test_whoever_watches_hears_of_another_isr_and_of_the_end() -> None:
    led = Led(ONE)
    led.commit(ONE, TWO)
    assert led.woken == ["follower: changed", "consumer: changed"]
    led.woken.clear()
    led.partition.give_up(NotLeader("another leads"))
    assert led.woken == ["follower: changed", "consumer: changed"]


def test_batches_that_the_leader_built_and_markers_are_appends_too() -> None:
    led = Led(ONE)
    led.partition.append_built(bytearray(build.batch()), build.NOW_MS)
    assert led.woken == ["follower: appended"]
    producer, epoch = ProducerId(7), ProducerEpoch(0)
    batch = build.batch(
        producer_id=producer, producer_epoch=epoch, base_sequence=0, is_transactional=True
    )
    led.partition.append(memoryview(batch), ACKS_ALL, build.NOW_MS)
    led.woken.clear()
    led.partition.append_marker(Marker(MarkerKind.COMMIT, 0), producer, epoch, build.NOW_MS)
    assert led.woken == ["follower: appended"]


def test_a_watcher_that_left_hears_nothing() -> None:
    led = Led(ONE)
    gone = Watcher("gone", led.woken)
    led.partition.watchers.watch_appends(gone)
    led.partition.watchers.remove(gone)
    led.append()
    led.fetch(ONE, 1)
    assert not any("gone" in note for note in led.woken)


def test_a_leader_alone_is_too_few() -> None:
    led = Led()
    with pytest.raises(NotEnoughReplicas, match=r"min.insync.replicas is 2"):
        led.append()
    led.append(ACKS_LEADER)
    led.fetch(ONE, 1)
    assert led.partition.high_watermark == 0, "what only one in sync has is not committed"


def test_producers_that_wait_learn_when_replicas_in_sync_become_too_few() -> None:
    led = Led(ONE)
    led.append()
    led.commit(elr=(ONE,))
    assert [type(error) for error in led.settled] == [NotEnoughReplicasAfterAppend]


def test_nothing_is_committed_while_others_than_those_in_sync_may_be_elected() -> None:
    led = Led(ONE, TWO)
    led.append()
    led.commit(ONE, elr=(TWO,))  # min.insync.replicas was lowered just now
    led.fetch(ONE, 1)
    assert led.partition.high_watermark == 0
    led.commit(ONE)
    assert led.partition.high_watermark == 1


def test_a_new_partition_commits_nothing_until_the_store_has_opened_it() -> None:
    led = Led(ONE)
    led.partition.note_image(replace(led.partition.image, is_new=True), 0.0)
    led.append()
    led.fetch(ONE, 1)
    assert led.partition.high_watermark == 0
    change = led.begin()
    assert change is not None
    assert change.isr == (HERE, ONE)
    led.commit(ONE)
    led.partition.end_isr_change()
    assert led.partition.high_watermark == 1


# A new leader


def test_a_new_leader_begins_with_the_watermark_it_knows() -> None:
    led = Led(ONE, before=5, watermark=3)
    assert led.partition.high_watermark == 3
    assert led.partition.is_waited_for, "its predecessor may have committed more"
    led.fetch(ONE, 4)
    assert (led.partition.high_watermark, led.partition.is_waited_for) == (4, True)
    led.fetch(ONE, 5)
    assert (led.partition.high_watermark, led.partition.is_waited_for) == (5, False)


def test_the_watermark_is_kept_when_leadership_is_lost() -> None:
    led = Led(ONE)
    led.append()
    led.fetch(ONE, 1)
    led.append()
    led.partition.give_up(NotLeader("lost"))
    assert led.log.noted_watermark == 1
    led.fetch(ONE, 2)
    assert led.partition.high_watermark == 1, "it commits nothing any more"


# Who is in sync


def test_a_follower_joins_when_it_has_what_is_committed_and_what_may_have_been() -> None:
    led = Led(ONE, before=3, watermark=0)
    led.fetch(ONE, 1)
    led.fetch(TWO, 2)
    assert led.partition.high_watermark == 1
    assert (led.begin(), led.wanted_count) == (None, 0), "an earlier leader may have committed 3"
    led.fetch(TWO, 3)
    assert led.wanted_count == 1
    change = led.begin()
    assert change is not None
    assert (change.isr, change.epochs) == ((HERE, ONE, TWO), {TWO: EPOCH})


def test_one_that_joins_counts_from_when_the_change_is_sent() -> None:
    led = Led(ONE)
    led.fetch(TWO, 0)
    assert led.begin() is not None
    led.append()
    led.fetch(ONE, 1)
    assert led.partition.high_watermark == 0, "it may be in the ISR already"
    led.partition.end_isr_change()
    assert led.partition.high_watermark == 1, "it was refused"


def test_one_that_leaves_counts_until_it_has_left() -> None:
    led = Led(ONE, TWO)
    led.append()
    led.fetch(ONE, 1, now_s=20.0)
    change = led.begin(caught_up_s_min=10.0)
    assert change is not None
    assert change.isr == (HERE, ONE)
    assert led.partition.high_watermark == 0
    led.commit(ONE)
    assert led.partition.high_watermark == 1


def test_only_one_change_is_under_way() -> None:
    led = Led(ONE)
    led.fetch(TWO, 0)
    assert led.begin() is not None
    assert led.begin() is None
    led.partition.end_isr_change()
    assert led.begin() is not None


def test_a_follower_that_started_anew_has_to_fetch_first() -> None:
    led = Led(ONE)
    led.fetch(TWO, 0, epoch=EPOCH - 1)
    assert led.begin() is None, "it is registered in another epoch"
    led.fetch(TWO, 0)
    led.partition.forget_follower(TWO)
    assert led.begin() is None


def test_a_broker_without_a_replica_is_no_follower() -> None:
    led = Led(ONE)
    led.partition.check_follower(TWO)
    for stranger in (HERE, BrokerId(9)):
        with pytest.raises(NotLeader):
            led.partition.check_follower(stranger)


# Moves


def moved(
    led: Led,
    replicas: tuple[BrokerId, ...],
    isr: tuple[BrokerId, ...],
    *,
    adding: tuple[BrokerId, ...] = (),
    removing: tuple[BrokerId, ...] = (),
    leader_epoch: int = build.EPOCH,
) -> None:
    """The leader sees the next image of its partition."""
    now = replace(
        led.partition.image,
        replicas=replicas,
        isr=isr,
        adding=adding,
        removing=removing,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=led.partition.image.partition_epoch + 1,
        is_new=False,
    )
    led.partition.note_image(now, 50.0)


def test_a_replica_that_is_added_joins_when_it_has_caught_up() -> None:
    led = Led(ONE, TWO)
    new = BrokerId(3)
    with pytest.raises(NotLeader):
        led.partition.check_follower(new)
    moved(led, (HERE, ONE, new, TWO), (HERE, ONE, TWO), adding=(new,), removing=(TWO,))
    led.append()
    led.partition.check_follower(new)
    led.fetch(new, 0)
    for follower in (ONE, TWO):
        led.fetch(follower, 1)
    assert led.partition.high_watermark == 1, "it does not count yet"
    assert led.begin() is None
    led.fetch(new, 1)
    change = led.partition.begin_isr_change({**live(), new: replace(broker(3), epoch=EPOCH)}, -1.0)
    assert change is not None
    assert change.isr == (HERE, ONE, new, TWO)


def test_a_replica_that_was_dropped_and_added_again_has_to_fetch_first() -> None:
    led = Led(ONE, TWO)
    for follower in (ONE, TWO):
        led.fetch(follower, 0)
    led.append()
    for follower in (ONE, TWO):
        led.fetch(follower, 1)
    # The image without TWO was skipped: its log may be gone.
    replicas = (HERE, ONE, TWO)
    moved(led, replicas, (HERE, ONE), adding=(TWO,), leader_epoch=build.EPOCH + 1)
    assert led.begin() is None
    led.fetch(TWO, 0)
    assert led.begin() is None
    led.fetch(TWO, 1)
    change = led.begin()
    assert change is not None
    assert change.isr == replicas


def test_a_leader_that_stays_leads_on_in_the_next_epoch_when_replicas_are_dropped() -> None:
    led = Led(ONE, TWO)
    led.append()
    led.fetch(ONE, 1)
    moved(led, (HERE, ONE), (HERE, ONE), leader_epoch=build.EPOCH + 1)
    assert led.settled == [None], "its producer waits for those that are left"
    assert led.partition.leader_epoch == led.log.epochs.latest == build.EPOCH + 1
    with pytest.raises(NotLeader):
        led.partition.check_follower(TWO)
    assert not led.partition.is_waited_for
    end = led.append()
    assert led.log.epoch_end(LeaderEpoch(build.EPOCH)) == (build.EPOCH, 1)
    led.fetch(ONE, end)
    assert led.partition.high_watermark == 2


def test_a_partition_that_gets_more_replicas_goes_on_with_as_many_in_sync_as_it_had() -> None:
    led = Led()
    moved(led, (HERE,), (HERE,))
    assert led.append() == led.partition.high_watermark == 1
    moved(led, (HERE, ONE, TWO), (HERE,), adding=(ONE, TWO))
    assert led.append() == led.partition.high_watermark == 2
    moved(led, (HERE, ONE, TWO), (HERE, ONE, TWO))
    led.append()
    assert led.partition.high_watermark == 2
