"""Everything that a handler may use: one object, which makes coordinators on first use."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.metadata_changes import MetadataChanges
from ottla.broker.topic_creation import TopicCreation
from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.runtime.internal_topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
)
from ottla.model import BrokerId, ProducerId, TopicPartition
from ottla.replication.replicas import Replicas
from ottla.settings import Settings
from ottla.telemetry import Metric

if TYPE_CHECKING:
    from ottla.broker.connection import Connection
    from ottla.broker.partition_bounds import PartitionBounds
    from ottla.broker.peer_senders import PeerSenders
    from ottla.broker.produce_verification import ProduceVerification
    from ottla.broker.shard_queries import ShardQueries
    from ottla.broker.share_group_states import ShareGroupStates
    from ottla.broker.share_partitions import SharePartitions
    from ottla.broker.waiting_partition import WaitingPartition
    from ottla.broker.waiting_records import WaitingRecords
    from ottla.coordinator.groups.coordinator import GroupCoordinator
    from ottla.coordinator.share.coordinator import ShareCoordinator
    from ottla.coordinator.share.peer_states import PeerShareStates
    from ottla.coordinator.share.routing import ShareStateRouter
    from ottla.coordinator.transactions.coordinator import TransactionCoordinator
    from ottla.coordinator.transactions.markers import TransactionEnd
    from ottla.coordinator.transactions.peer_markers import PeerMarkers
    from ottla.coordinator.transactions.peer_verification import PeerVerification
    from ottla.coordinator.transactions.producer_ids import ProducerIds
    from ottla.coordinator.transactions.routing import TransactionRouter
    from ottla.replication.forwarding import ForwardedPartition, Forwarding
    from ottla.replication.partition import LeaderPartition
    from ottla.replication.peer_forwarding import PeerForwarding
    from ottla.replication.peers import Peers
    from ottla.replication.waiting_records import WaitingRecords as WaitingHere


class RequestContext(NamedTuple):
    """A request's version and sender: what a handler gets besides the decoded body."""

    version: int
    client_id: str | None
    peer: str
    connection: "Connection | None" = None  # None in tests that call a handler


@dataclass(frozen=True)
class Services:
    """Everything that handlers use. A broker that only moves records imports no coordinator."""

    node_id: BrokerId
    state: ClusterState
    replicas: Replicas
    settings: Settings
    changes: MetadataChanges
    topic_creation: TopicCreation
    clock: Clock
    rng: random.Random
    note_defect: Callable[[BaseException], None]

    @cached_property
    def groups(self) -> "GroupCoordinator":
        from ottla.coordinator.groups.coordinator import GroupCoordinator  # noqa: PLC0415

        coordinator = GroupCoordinator(
            self.state,
            self.replicas,
            self.topic_creation,
            self.clock,
            self.note_defect,
            settings=self.settings,
            rng=self.rng,
        )
        coordinator.follow()
        return coordinator

    @cached_property
    def transactions(self) -> "TransactionCoordinator":
        from ottla.coordinator.transactions.coordinator import (  # noqa: PLC0415
            TransactionCoordinator,
        )
        from ottla.coordinator.transactions.markers import Markers  # noqa: PLC0415

        coordinator = TransactionCoordinator(
            self.state,
            self.replicas,
            self.topic_creation,
            self.clock,
            self.note_defect,
            settings=self.settings,
            ids=self.producer_ids,
            markers=Markers(
                self.replicas,
                self.clock,
                lambda: self.groups,
                self._write_elsewhere,
                self._marker_targets,
            ),
        )
        coordinator.follow()
        return coordinator

    async def _marker_targets(
        self, tp: TopicPartition, producer_id: ProducerId
    ) -> "list[tuple[TopicPartition, ProducerId]]":
        return await self.forwarding.marker_targets(tp, producer_id)

    async def _write_elsewhere(self, tp: TopicPartition, end: "TransactionEnd") -> None:
        await self.peer_markers.write(tp, end)

    @cached_property
    def transaction_router(self) -> "TransactionRouter":
        """The transaction coordinators of all brokers."""
        from ottla.coordinator.transactions.routing import TransactionRouter  # noqa: PLC0415

        return TransactionRouter(
            self.node_id,
            self.transactions,
            lambda: self.state.image,
            lambda: self.peer_verification,
        )

    # Other brokers: a broker without peers has none of these

    @cached_property
    def peers(self) -> "Peers":
        from ottla.replication.peers import Peers  # noqa: PLC0415

        return Peers(self.node_id, lambda: self.state.image, self.note_defect)

    @cached_property
    def peer_markers(self) -> "PeerMarkers":
        from ottla.coordinator.transactions.peer_markers import PeerMarkers  # noqa: PLC0415

        return PeerMarkers(self.peers, lambda: self.state.image)

    @cached_property
    def peer_verification(self) -> "PeerVerification":
        from ottla.coordinator.transactions.peer_verification import (  # noqa: PLC0415
            PeerVerification,
        )

        return PeerVerification(self.peers)

    @cached_property
    def share(self) -> "ShareCoordinator":
        from ottla.coordinator.share.coordinator import ShareCoordinator  # noqa: PLC0415

        coordinator = ShareCoordinator(
            self.state, self.replicas, self.topic_creation, self.clock, self.note_defect
        )
        coordinator.follow()
        return coordinator

    @cached_property
    def share_states(self) -> "ShareStateRouter":
        """The share coordinators of all brokers."""
        from ottla.coordinator.share.routing import ShareStateRouter  # noqa: PLC0415

        return ShareStateRouter(
            self.node_id, self.share, lambda: self.state.image, self._peer_share_states
        )

    def _peer_share_states(self) -> "PeerShareStates":
        return self.peer_share_states

    @cached_property
    def peer_share_states(self) -> "PeerShareStates":
        from ottla.coordinator.share.peer_states import PeerShareStates  # noqa: PLC0415

        return PeerShareStates(self.peers)

    @cached_property
    def share_senders(self) -> "PeerSenders":
        """Brokers that call on share states here."""
        from ottla.broker.peer_senders import PeerSenders  # noqa: PLC0415

        return PeerSenders(lambda: self.state.image)

    @cached_property
    def shard_queries(self) -> "ShardQueries":
        from ottla.broker.shard_queries import ShardQueries  # noqa: PLC0415

        return ShardQueries(
            self.node_id, self.groups, self.share, lambda: self.state.image, lambda: self.peers
        )

    @cached_property
    def partition_bounds(self) -> "PartitionBounds":
        from ottla.broker.partition_bounds import PartitionBounds  # noqa: PLC0415

        return PartitionBounds(self.replicas, lambda: self.state.image, lambda: self.peers)

    @cached_property
    def share_partitions(self) -> "SharePartitions":
        from ottla.broker.dead_letter_topics import DeadLetterTopics  # noqa: PLC0415
        from ottla.broker.dead_letters import DeadLetters  # noqa: PLC0415
        from ottla.broker.share_partitions import SharePartitions  # noqa: PLC0415

        topics = DeadLetterTopics(
            self.state, self.replicas, self.settings, self.clock, lambda: self.peers
        )
        return SharePartitions(
            self.state,
            self.replicas,
            self.share_states,
            self.settings,
            self.clock,
            self.note_defect,
            DeadLetters(topics, self.producer_ids.next, self.clock, self.note_defect),
        )

    @cached_property
    def waiting_records(self) -> "WaitingRecords":
        from ottla.broker.waiting_records import WaitingRecords  # noqa: PLC0415

        return WaitingRecords(self.clock, self.note_defect)

    def lead_waiting(self, partition: "LeaderPartition") -> "WaitingPartition":
        """The records that wait in a partition that is led here from now on."""
        return self.waiting_records.lead(partition)

    def waiting_of(self, tp: TopicPartition) -> "WaitingHere | None":
        """The records that wait in a partition; None if it is not led here, or none may wait."""
        partition = self.replicas.leaders.get(tp)
        return None if partition is None else partition.waiting

    @cached_property
    def share_group_states(self) -> "ShareGroupStates":
        from ottla.broker.share_group_states import ShareGroupStates  # noqa: PLC0415

        return ShareGroupStates(self.groups, self.share_states)

    @cached_property
    def producer_ids(self) -> "ProducerIds":
        from ottla.coordinator.transactions.producer_ids import ProducerIds  # noqa: PLC0415

        return ProducerIds(self.state, self.replicas.remember_store)

    @cached_property
    def forwarding(self) -> "Forwarding":
        """Batches for partitions that are sealed, or were."""
        from ottla.replication.forwarding import Forwarding  # noqa: PLC0415

        return Forwarding(
            self.replicas.leaders, lambda: self.state.image, self._make_peer_forwarding
        )

    def _make_peer_forwarding(self) -> "PeerForwarding":
        from ottla.replication.peer_forwarding import PeerForwarding  # noqa: PLC0415

        return PeerForwarding(self.peers, lambda: self.state.image, self.replicas.leaders)

    @cached_property
    def produce_verification(self) -> "ProduceVerification":
        from ottla.broker.produce_verification import ProduceVerification  # noqa: PLC0415

        return ProduceVerification(
            self.replicas,
            self.transaction_router,
            self.note_defect,
            self._route,
        )

    def _route(self, tp: TopicPartition) -> "ForwardedPartition":
        return self.forwarding.route(tp)

    # The coordinators that exist

    def open_coordinators(self) -> None:
        """Make the coordinators whose topics exist: from now on their deadlines pass."""
        topics = self.state.image.topics
        if OFFSETS_TOPIC in topics:
            _ = self.groups
        if TRANSACTIONS_TOPIC in topics:
            _ = self.transactions
        if SHARE_STATE_TOPIC in topics:
            _ = self.share

    def close_coordinators(self) -> None:
        """Refuse the requests that wait for a coordinator, and those that come."""
        if "share_partitions" in self.__dict__:
            self.share_partitions.close()
        if "waiting_records" in self.__dict__:
            self.waiting_records.close()
        for coordinator in self._coordinators():
            coordinator.close()
        if "peers" in self.__dict__:
            self.peers.close()

    def note_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow leadership; a coordinator's topic may have been created by another broker."""
        if any(topic in new.topics and topic not in old.topics for topic in INTERNAL_TOPICS):
            self.open_coordinators()
        for coordinator in self._coordinators():
            coordinator.note_image(old, new)

    async def expire_offsets(self) -> None:
        if "groups" in self.__dict__:
            await self.groups.expire()

    async def expire_transactional_ids(self) -> None:
        if "transactions" in self.__dict__:
            await self.transactions.expire()

    async def prune_share_states(self) -> None:
        if "share" in self.__dict__:
            await self.share.expire()

    async def delete_acknowledged(self) -> None:
        """Delete records of queues that all share groups have finished."""
        if "share" not in self.__dict__:
            return
        from ottla.broker.acknowledged_records import AcknowledgedRecords  # noqa: PLC0415

        await AcknowledgedRecords(
            self.state, self.replicas, self.settings, self.shard_queries
        ).delete()

    async def resume_dead_letters(self) -> None:
        """Have the leaders of share partitions write what their states say is not written."""
        archiving = self.share.archiving() if "share" in self.__dict__ else []
        if archiving:
            self.share_partitions.resume(archiving)
            await self.shard_queries.resume_elsewhere(archiving)

    def collect_groups(self) -> Iterable[Metric]:
        """Metrics of the groups that are coordinated here."""
        return self.groups.collect() if "groups" in self.__dict__ else ()

    def collect_share_groups(self) -> Iterable[Metric]:
        """Metrics of the share groups whose members read here."""
        from ottla.broker.share_metrics import ShareCounts, collect_share_groups  # noqa: PLC0415

        made = "share_partitions" in self.__dict__
        counts = self.share_partitions.counts() if made else ShareCounts()
        series_max = self.settings.broker.group_metrics_series_max
        return collect_share_groups(counts, series_max=series_max)

    def collect_waiting(self) -> Iterable[Metric]:
        """Metrics of records that wait in partitions led here."""
        from ottla.broker.waiting_metrics import WaitingCounts, collect_waiting  # noqa: PLC0415

        made = "waiting_records" in self.__dict__
        return collect_waiting(self.waiting_records.counts() if made else WaitingCounts())

    def _coordinators(self) -> "list[GroupCoordinator | TransactionCoordinator | ShareCoordinator]":
        made = self.__dict__
        coordinators: list[GroupCoordinator | TransactionCoordinator | ShareCoordinator] = []
        if "share" in made:
            coordinators.append(self.share)
        if "transactions" in made:
            coordinators.append(self.transactions)
        if "groups" in made:
            coordinators.append(self.groups)
        return coordinators
