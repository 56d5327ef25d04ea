"""Reads for followers: up to the log's end, and each of them says how far the follower is."""

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
from ottla.protocol.hot_fetch import FetchedPartition, FetchPartition, FetchRequest
from ottla.replication.followers import FollowerClock
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
        self.clock: FollowerClock | None = None  # of the session, if there is one
        self._broker = BrokerId(request.replica_id)
        self._epoch = request.replica_epoch
        self._session = request.session_id, request.session_epoch
        self._now_s = now_s

    def end_first(self) -> None:
        """The partitions that were due were read: of the others the follower has everything."""
        self.is_first = False
        if self.clock is not None:
            self.clock.fetched_s = self._now_s

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
            partition.note_fetch(self._broker, self._epoch, offset, self._now_s, self.clock)
            if partition.contacts is not None:
                partition.contacts.note(self._broker, *self._session)
        records = None
        bytes_max = min(want.bytes_max, left_bytes)
        if offset < log.end_offset and (bytes_max > 0 or at_least_one):
            records = log.read(offset, log.end_offset, max(bytes_max, 0), at_least_one=at_least_one)
        watermark = partition.high_watermark
        return FetchedPartition(
            want.partition,
            high_watermark=watermark,
            log_start_offset=log.start_offset,
            records=records,
            is_urgent=want.high_watermark < watermark,
            is_left_out=records is None and offset < log.end_offset,
        )


class RefusedReads:
    """The reads of a fetch as a replica that is refused: each partition gets the error."""

    def __init__(self, refused: ApiError) -> None:
        self._refused = refused

    def read(
        self, partition: Readable, want: FetchPartition, left_bytes: int, *, at_least_one: bool
    ) -> FetchedPartition[FileRange]:
        raise self._refused
