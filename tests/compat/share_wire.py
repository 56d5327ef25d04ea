"""A member of a share group over a raw connection: nothing is retried or hidden."""

from collections.abc import Sequence
from typing import Any

from compat.adapter import wait_until
from compat.raw import RawConnection
from compat.wire import topic_id
from ottla.model import Uuid
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchPartitionResponse,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
    ShareGroupHeartbeatRequest,
)
from ottla.records.batch import batches, records

GROUP_RESOURCE = 32
Said = Sequence[tuple[int, int, Sequence[int]] | AcknowledgementBatch]


def set_group(raw: RawConnection, group: str, **settings: str) -> None:
    """Settings of a group; `_` for dots."""
    configs = [
        IncrementalAlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=configs
    )
    answer = raw.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer


class RawMember:
    """One member with one session; `epoch` is that of its next request."""

    def __init__(self, raw: RawConnection, group: str, member_id: str, topic: str) -> None:
        self.raw = raw
        self.group = group
        self.member_id = member_id
        self.topic = topic
        self.topic_id: Uuid = topic_id(raw, topic)
        self.epoch = 0

    def beat(self, epoch: int = 0, *, topics: Sequence[str] | None = None) -> Any:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            subscribed_topic_names=list(topics or [self.topic]) if epoch == 0 else None,
        )
        return self.raw.ask(request, 1)

    def join(self) -> Any:
        """Join; asks again until the coordinator serves."""
        answers: list[Any] = []

        def is_joined() -> bool:
            answers.append(self.beat())
            return not answers[-1].error_code

        wait_until(is_joined, "the member has joined")
        return answers[-1]

    def fetch(
        self,
        *,
        said: Said = (),
        partition: int = 0,
        epoch: int | None = None,
        version: int = 2,
        forget: bool = False,
        **more: Any,
    ) -> Any:
        """The whole response."""
        request = self.fetch_request(
            said=said, partition=partition, epoch=epoch, forget=forget, **more
        )
        return self.raw.ask(request, version)

    def fetch_request(
        self,
        *,
        said: Said = (),
        partition: int = 0,
        epoch: int | None = None,
        forget: bool = False,
        **more: Any,
    ) -> ShareFetchRequest:
        limits = {"max_wait_ms": 2000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500}
        if epoch is None:
            epoch, self.epoch = self.epoch, self.epoch + 1
        wanted = ShareFetchPartition(
            partition_index=partition, acknowledgement_batches=_batches(said)
        )
        return ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=[] if forget else [ShareFetchTopic(topic_id=self.topic_id, partitions=[wanted])],
            forgotten_topics_data=(
                [ShareForgottenTopic(topic_id=self.topic_id, partitions=[partition])]
                if forget
                else []
            ),
            **(limits | more),
        )

    def take(self, **more: Any) -> list[tuple[int, int, int]]:
        """The ranges that a fetch acquires, with their delivery counts."""
        answer = self.fetch(**more)
        assert not answer.error_code, answer
        return [
            (one.first_offset, one.last_offset, one.delivery_count)
            for partition in partitions(answer)
            for one in partition.acquired_records
        ]

    def acknowledge_request(
        self, said: Said, *, epoch: int | None = None, partition: int = 0, **more: Any
    ) -> ShareAcknowledgeRequest:
        if epoch is None:
            epoch, self.epoch = self.epoch, self.epoch + 1
        wanted = ShareAcknowledgePartition(
            partition_index=partition, acknowledgement_batches=_batches(said)
        )
        return ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=[ShareAcknowledgeTopic(topic_id=self.topic_id, partitions=[wanted])]
            if said
            else [],
            **more,
        )

    def acknowledge(
        self, *said: tuple[int, int, Sequence[int]] | AcknowledgementBatch, **more: Any
    ) -> int:
        """The error code of the partition, or of the whole response."""
        answer = self.raw.ask(self.acknowledge_request(said, **more), 2)
        if answer.error_code or not answer.responses:
            return int(answer.error_code)
        return int(answer.responses[0].partitions[0].error_code)


def partitions(answer: Any) -> list[ShareFetchPartitionResponse]:
    return [partition for topic in answer.responses for partition in topic.partitions]


def values(answer: Any) -> list[bytes]:
    """The values of the acquired records."""
    found = []
    for partition in partitions(answer):
        offsets = {
            offset
            for one in partition.acquired_records
            for offset in range(one.first_offset, one.last_offset + 1)
        }
        for header, view in batches(partition.records or b""):
            if not header.is_control:
                found += [
                    record.value or b""
                    for record in records(view, decompressed_bytes_max=1 << 20)
                    if record.offset in offsets
                ]
    return found


def _batches(said: Said) -> list[AcknowledgementBatch]:
    return [
        item
        if isinstance(item, AcknowledgementBatch)
        else AcknowledgementBatch(
            first_offset=item[0], last_offset=item[1], acknowledge_types=list(item[2])
        )
        for item in said
    ]
