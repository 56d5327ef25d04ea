"""Reads for consumers: what is committed, or decided; near ones from a follower (KIP-392).

With `replica.selector=rack` a leader sends a consumer that names its rack to an in-sync replica in
that rack. A follower serves what it knows to be committed, while its leader responds to it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.errors import NotLeader
from ottla.model import BrokerId, LeaderEpoch, Offset
from ottla.protocol.hot_fetch import FetchedPartition, FetchPartition, FetchRequest
from ottla.protocol.hot_fields import TopicKey
from ottla.records.batch import HEADER_BYTES
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.settings import Settings
from ottla.storage.log import Log
from ottla.storage.log_read import FileRange

if TYPE_CHECKING:  # a broker without peers has none
    from ottla.replication.follower import FollowerPartition

Readable: TypeAlias = "LeaderPartition | FollowerPartition"

RACK: Final = "rack"
_READ_COMMITTED: Final = 1


class ConsumerReads:
    """The reads of a consumer: what is committed, or decided."""

    __slots__ = ("_read_committed",)

    def __init__(self, request: FetchRequest) -> None:
        self._read_committed = request.isolation_level == _READ_COMMITTED

    def read(
        self, partition: Readable, want: FetchPartition, left_bytes: int, *, at_least_one: bool
    ) -> FetchedPartition[FileRange]:
        partition.check_epoch(want.leader_epoch)
        log = partition.log
        read_committed = self._read_committed
        high_watermark = partition.high_watermark
        end = partition.readable_end(read_committed=read_committed)
        stable = end if read_committed else log.last_stable_offset(high_watermark)
        if want.last_fetched_epoch >= 0 and partition.is_leader:
            epoch, epoch_end = log.epoch_end(LeaderEpoch(want.last_fetched_epoch))
            if epoch != want.last_fetched_epoch or epoch_end < want.offset:
                return FetchedPartition(
                    want.partition,
                    0,
                    high_watermark,
                    stable,
                    log.start_offset,
                    diverging=(epoch, epoch_end),
                    is_urgent=True,
                )
        partition.check_offset(want.offset)
        records = None
        bytes_max = min(want.bytes_max, left_bytes)
        if want.offset < end and (bytes_max > 0 or at_least_one):
            bytes_max = max(bytes_max, 0)
            if log.may_hide:
                return self._read_seen(partition, want, end, bytes_max, at_least_one)
            records = log.read(Offset(want.offset), end, bytes_max, at_least_one=at_least_one)
            if (
                records is not None and not records.size_bytes % HEADER_BYTES
            ):  # may be empty batches
                records = log.read_on(records, end, bytes_max, at_least_one=at_least_one)
        aborted: list[tuple[int, int]] | None = None
        if read_committed:
            aborted = []
            if records is not None:
                aborted = _aborted(log, records)
        if records is None and want.offset < end:
            return FetchedPartition(
                want.partition,
                0,
                high_watermark,
                stable,
                log.start_offset,
                aborted,
                is_left_out=True,
            )
        return FetchedPartition(
            want.partition, 0, high_watermark, stable, log.start_offset, aborted, None, records
        )

    def _read_seen(
        self,
        partition: Readable,
        want: FetchPartition,
        end: Offset,
        bytes_max: int,
        at_least_one: bool,
    ) -> FetchedPartition[FileRange]:
        """Read a log of which some records are hidden."""
        from ottla.broker.lens_reads import read_seen  # noqa: PLC0415  # few topics have such

        log, watermark = partition.log, partition.high_watermark
        stable = log.last_stable_offset(watermark)
        seen = read_seen(log, Offset(want.offset), end, bytes_max, at_least_one=at_least_one)
        aborted: Sequence[tuple[int, int]] | None = [] if self._read_committed else None
        if seen is None:
            return FetchedPartition(
                want.partition, 0, watermark, stable, log.start_offset, aborted, is_left_out=True
            )
        records = seen.records
        if self._read_committed:
            aborted = seen.aborted
            if aborted is None:
                aborted = _aborted(log, records)
        return FetchedPartition(
            want.partition,
            0,
            watermark,
            stable,
            log.start_offset,
            aborted,
            None,
            records,
            is_urgent=seen.is_cut,
            is_skip=seen.is_skip,
        )


class NearReads(ConsumerReads):
    """The reads of a consumer that may be sent to a replica in its rack."""

    __slots__ = ("_image", "_rack")

    def __init__(self, request: FetchRequest, image: ClusterImage) -> None:
        super().__init__(request)
        self._rack = request.rack
        self._image = image

    def read(
        self, partition: Readable, want: FetchPartition, left_bytes: int, *, at_least_one: bool
    ) -> FetchedPartition[FileRange]:
        if self._rack and isinstance(partition, LeaderPartition):
            partition.check_epoch(want.leader_epoch)
            partition.check_offset(want.offset)
            near = near_replica(partition, want.offset, self._rack, self._image)
            if near is not None:
                watermark = partition.high_watermark
                return FetchedPartition(
                    want.partition,
                    0,
                    watermark,
                    partition.log.last_stable_offset(watermark),
                    partition.log.start_offset,
                    preferred=near,
                    is_urgent=True,
                )
        return super().read(partition, want, left_bytes, at_least_one=at_least_one)


def _aborted(log: Log, records: FileRange) -> list[tuple[int, int]]:
    """Producer and first offset of the aborted transactions in a range."""
    return [
        (one.producer_id, one.first_offset)
        for one in log.aborted_transactions(records.start_offset, records.end_offset)
    ]


def near_replica(
    partition: LeaderPartition, offset: int, rack: str, image: ClusterImage
) -> BrokerId | None:
    """The in-sync replica in a rack that has the most, and all below `offset`.

    None if there is none, or if its leader is in that rack.
    """
    brokers, leader = image.brokers, partition.image.leader
    if leader is None or (leader in brokers and brokers[leader].rack == rack):
        return None
    best: BrokerId | None = None
    best_end = offset
    for broker in partition.isr:
        follower = partition.followers.by_id.get(broker)
        if follower is None or broker not in brokers or brokers[broker].rack != rack:
            continue
        if follower.end >= best_end and (best is None or follower.end > best_end):
            best, best_end = broker, follower.end
    return best


class NearReplicas:
    """Finds partitions for consumers that may read from followers."""

    def __init__(self, replicas: Replicas, settings: Settings, clock: Clock) -> None:
        self._replicas = replicas
        self._settings = settings
        self._clock = clock

    @property
    def is_enabled(self) -> bool:
        return self._settings.broker.replica_selector == RACK

    def locate(self, key: TopicKey, index: int) -> Readable:
        """The partition, led or followed here; not while its leader is silent."""
        try:
            return self._replicas.locate(key, index)
        except NotLeader:
            name = self._replicas.topic_names[key] if isinstance(key, bytes) else key
            followed = self._replicas.following.find(name, index)
            if followed is None:
                raise
        lag_max_s = self._settings.broker.replica_lag_time_max_ms / 1000
        followed.note_read(self._clock.monotonic_s(), lag_max_s)
        return followed
