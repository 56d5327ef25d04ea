"""Reads for followers: up to the log's end, and each of them says how far the follower is."""

from collections.abc import Callable
from hmac import compare_digest

from ottla.broker.consumer_reads import Readable
from ottla.cluster.image import ClusterImage
from ottla.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    OffsetOutOfRange,
    StaleBrokerEpoch,
)
from ottla.model import BrokerId, LeaderEpoch, Offset
from ottla.protocol.hot_fetch import (
    NO_WATERMARK,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)
from ottla.replication.partition import LeaderPartition
from ottla.storage.log_read import FileRange


def check_follower(image: ClusterImage, request: FetchRequest) -> None:
    """Refuse a fetch as a replica that is not from a broker of this cluster, as registered now."""
    known = image.registered.get(BrokerId(request.replica_id))
    if known is None:
        raise ClusterAuthorizationFailed("only brokers of this cluster fetch as replicas")
    if known.epoch != request.replica_epoch:
        raise StaleBrokerEpoch(
            f"broker {known.id} is registered in epoch {known.epoch}, not {request.replica_epoch}"
        )
    if not known.token or not compare_digest(known.token, request.replica_token):
        raise ClusterAuthorizationFailed("only brokers of this cluster fetch as replicas")


class ReplicaReads:
    """The reads of one fetch of a follower. Only the first says how far it is."""

    def __init__(self, request: FetchRequest, now_s: float) -> None:
        self.is_first = True
        self._broker = BrokerId(request.replica_id)
        self._epoch = request.replica_epoch
        self._session = request.session_id, request.session_epoch
        self._now_s = now_s
        self._read_near: dict[LeaderPartition, None] = {}  # the follower has consumers of these

    def read(
        self, partition: Readable, want: FetchPartition, left_bytes: int, *, at_least_one: bool
    ) -> FetchedPartition[FileRange]:
        """A refused fetch, or one that shows that the logs differ, says nothing of the follower."""
        assert isinstance(partition, LeaderPartition), "a follower is served by leaders"
        partition.check_follower(self._broker)
        partition.check_epoch(want.leader_epoch)
        log = partition.log
        watermark = partition.high_watermark
        if want.last_fetched_epoch >= 0:
            epoch, epoch_end = log.epoch_end(LeaderEpoch(want.last_fetched_epoch))
            if epoch != want.last_fetched_epoch or epoch_end < want.offset:
                return FetchedPartition(
                    want.partition,
                    high_watermark=watermark,
                    log_start_offset=log.start_offset,
                    diverging=(epoch, epoch_end),
                    is_urgent=True,
                )
        if not log.start_offset <= want.offset <= log.end_offset:
            return FetchedPartition(
                want.partition,
                OffsetOutOfRange.code,
                high_watermark=watermark,
                log_start_offset=log.start_offset,
            )
        offset = Offset(want.offset)
        if self.is_first:
            partition.note_fetch(self._broker, self._epoch, offset, self._now_s)
            if partition.contacts is not None:
                partition.contacts.note(self._broker, *self._session)
        records = None
        bytes_max = min(want.bytes_max, left_bytes)
        if offset < log.end_offset and (bytes_max > 0 or at_least_one):
            records = log.read(offset, log.end_offset, max(bytes_max, 0), at_least_one=at_least_one)
        watermark = partition.high_watermark
        if want.high_watermark != NO_WATERMARK:
            self._read_near[partition] = None
        return FetchedPartition(
            want.partition,
            high_watermark=watermark,
            log_start_offset=log.start_offset,
            records=records,
            is_urgent=want.high_watermark < watermark,
        )

    def watch(self, partition: Readable, wake: Callable[[], None]) -> None:
        assert isinstance(partition, LeaderPartition), "a follower is served by leaders"
        partition.add_fetch(wake)
        if partition in self._read_near:
            partition.add_reader(wake)

    def unwatch(self, partition: Readable, wake: Callable[[], None]) -> None:
        assert isinstance(partition, LeaderPartition), "a follower is served by leaders"
        partition.remove_fetch(wake)
        partition.remove_reader(wake)


class RefusedReads:
    """The reads of a fetch as a replica that is refused: each partition gets the error."""

    def __init__(self, refused: ApiError) -> None:
        self._refused = refused

    def read(
        self, partition: Readable, want: FetchPartition, left_bytes: int, *, at_least_one: bool
    ) -> FetchedPartition[FileRange]:
        raise self._refused

    def watch(self, partition: Readable, wake: Callable[[], None]) -> None:
        raise AssertionError("a refused fetch does not wait")

    def unwatch(self, partition: Readable, wake: Callable[[], None]) -> None:
        raise AssertionError("a refused fetch does not wait")
