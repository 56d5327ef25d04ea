"""Record what real clients send: `python tools/capture.py [client ...]` renews tests/golden.

A small server on loopback pretends to be a cluster of one broker, just well enough that each
client goes through its first requests: produce, consume in a group, transactions, admin. The
first frame of each kind is kept as tests/golden/<client>_<api>_v<version>.hex, without its length;
one that has bytes behind its request is kept as well, with `_left_over` in its name.
"""

import argparse
import asyncio
import shutil
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka.admin as confluent
import kafka
import kafka.admin
import kafka.errors
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition

from ottla.errors import ErrorCode
from ottla.model import Uuid
from ottla.protocol import codec
from ottla.protocol.api import APIS, ApiKey, RequestHeader, parse_request_header, response_frame
from ottla.protocol.messages import (
    api_versions,
    classic_groups,
    cluster,
    configs,
    consumer_groups,
    coordination,
    fetch,
    group_offsets,
    metadata,
    offsets,
    produce,
    producers,
    share_groups,
    topics,
    transactions,
)

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
TOPIC = "orders"
TOPIC_ID = Uuid(bytes(range(1, 17)))
GROUP = "readers"
MEMBER = "member-1"
TIMEOUT_S = 20
EMPTY_FETCH_S = 0.2  # how long an empty answer is held back, so that clients do not spin


class Recorder:
    """One broker with one topic of one partition, which remembers the first batch produced."""

    def __init__(self) -> None:
        self.frames: dict[str, bytes] = {}
        self.batch = b""
        self.port = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size_bytes = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size_bytes)
                header, position = parse_request_header(frame)
                api = APIS[header.api_key]
                request = codec.decode(api.request_class, header.api_version, frame, position)
                body_bytes = len(codec.encode(request, header.api_version))
                self._keep(header, frame, left_over=position + body_bytes < len(frame))
                answer = await self._answer(header, request)
                if answer is not None:
                    writer.write(response_frame(header, answer))
                    await writer.drain()
        writer.close()

    def _keep(self, header: RequestHeader, frame: bytes, left_over: bool) -> None:
        name = f"{header.api_key.name.lower()}_v{header.api_version}"
        self.frames.setdefault(name + "_left_over" * left_over, frame)

    async def _answer(self, header: RequestHeader, request: Any) -> Any:
        answer = getattr(self, f"_{header.api_key.name.lower()}", None)
        if answer is None:
            return APIS[header.api_key].response_class()
        if header.api_key is ApiKey.FETCH and not self._has_news(request):
            await asyncio.sleep(EMPTY_FETCH_S)
        if header.api_key is ApiKey.SHARE_FETCH:
            await asyncio.sleep(EMPTY_FETCH_S)
        return answer(request)

    def _has_news(self, request: Any) -> bool:
        return bool(self.batch) and any(
            partition.fetch_offset == 0
            for topic in request.topics
            for partition in topic.partitions
        )

    @property
    def _end_offset(self) -> int:
        return int.from_bytes(self.batch[23:27], "big") + 1 if self.batch else 0

    def _api_versions(self, request: Any) -> Any:
        return api_versions.ApiVersionsResponse(
            api_keys=[
                api_versions.ApiVersion(
                    api_key=api.key,
                    min_version=0 if api.key is ApiKey.PRODUCE else api.versions[0],
                    max_version=api.versions[-1],
                )
                for api in APIS.values()
            ]
        )

    def _metadata(self, request: Any) -> Any:
        partition = metadata.MetadataResponsePartition(
            leader_epoch=0, replica_nodes=[0], isr_nodes=[0]
        )
        return metadata.MetadataResponse(
            brokers=[metadata.MetadataResponseBroker(host="127.0.0.1", port=self.port)],
            cluster_id="golden",
            controller_id=0,
            topics=[
                metadata.MetadataResponseTopic(
                    name=TOPIC, topic_id=TOPIC_ID, partitions=[partition]
                )
            ],
        )

    def _describe_cluster(self, request: Any) -> Any:
        broker = cluster.DescribeClusterBroker(host="127.0.0.1", port=self.port)
        return cluster.DescribeClusterResponse(
            cluster_id="golden", controller_id=0, brokers=[broker]
        )

    def _produce(self, request: Any) -> Any:
        for topic in request.topic_data:
            for partition in topic.partition_data:
                self.batch = self.batch or bytes(partition.records)
        if request.acks == 0:
            return None
        return produce.ProduceResponse(
            responses=[
                like(
                    produce.TopicProduceResponse,
                    topic,
                    partition_responses=[
                        like(produce.PartitionProduceResponse, partition)
                        for partition in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _fetch(self, request: Any) -> Any:
        return fetch.FetchResponse(
            responses=[
                like(
                    fetch.FetchTopicResponse,
                    topic,
                    partitions=[self._fetched(partition) for partition in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _fetched(self, partition: Any) -> Any:
        return fetch.FetchPartitionResponse(
            partition_index=partition.partition,
            high_watermark=self._end_offset,
            last_stable_offset=self._end_offset,
            log_start_offset=0,
            aborted_transactions=[],
            records=self.batch if partition.fetch_offset == 0 else b"",
        )

    def _list_offsets(self, request: Any) -> Any:
        topic_class, partition_class = (
            offsets.ListOffsetsTopicResponse,
            offsets.ListOffsetsPartitionResponse,
        )
        found = mirror(request.topics, topic_class, partition_class, offset=0, leader_epoch=0)
        return offsets.ListOffsetsResponse(topics=found)

    def _init_producer_id(self, request: Any) -> Any:
        return producers.InitProducerIdResponse(producer_id=1000, producer_epoch=0)

    def _find_coordinator(self, request: Any) -> Any:
        here: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        found = [coordination.Coordinator(key=key, **here) for key in request.coordinator_keys]
        return coordination.FindCoordinatorResponse(coordinators=found, **here)

    def _join_group(self, request: Any) -> Any:
        protocol = request.protocols[0]
        me = classic_groups.JoinGroupResponseMember(member_id=MEMBER, metadata=protocol.metadata)
        return classic_groups.JoinGroupResponse(
            generation_id=1,
            protocol_type=request.protocol_type,
            protocol_name=protocol.name,
            leader=MEMBER,
            member_id=MEMBER,
            members=[me],
        )

    def _sync_group(self, request: Any) -> Any:
        mine = request.assignments[0].assignment if request.assignments else b""
        return like(classic_groups.SyncGroupResponse, request, assignment=mine)

    def _leave_group(self, request: Any) -> Any:
        gone = [like(classic_groups.MemberResponse, member) for member in request.members]
        return classic_groups.LeaveGroupResponse(members=gone)

    def _consumer_group_heartbeat(self, request: Any) -> Any:
        return self._assigned_by_broker(consumer_groups, "ConsumerGroupHeartbeatResponse", request)

    def _share_group_heartbeat(self, request: Any) -> Any:
        return self._assigned_by_broker(share_groups, "ShareGroupHeartbeatResponse", request)

    def _assigned_by_broker(self, messages: Any, response: str, request: Any) -> Any:
        topic = messages.HeartbeatTopicPartitions(topic_id=TOPIC_ID, partitions=[0])
        return getattr(messages, response)(
            member_id=request.member_id or MEMBER,
            member_epoch=request.member_epoch + 1 if request.member_epoch >= 0 else -1,
            heartbeat_interval_ms=1000,
            assignment=messages.HeartbeatAssignment(topic_partitions=[topic]),
        )

    def _share_fetch(self, request: Any) -> Any:
        return share_groups.ShareFetchResponse(acquisition_lock_timeout_ms=30_000)

    def _offset_fetch(self, request: Any) -> Any:
        """Nothing was ever committed, in the words of old and of new versions."""
        groups = [
            group_offsets.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=uncommitted(
                    group.topics or [],
                    group_offsets.OffsetFetchResponseTopics,
                    group_offsets.OffsetFetchResponsePartitions,
                ),
            )
            for group in request.groups
        ]
        return group_offsets.OffsetFetchResponse(
            groups=groups,
            topics=uncommitted(
                request.topics or [],
                group_offsets.OffsetFetchResponseTopic,
                group_offsets.OffsetFetchResponsePartition,
            ),
        )

    def _offset_commit(self, request: Any) -> Any:
        done = mirror(
            request.topics,
            group_offsets.OffsetCommitResponseTopic,
            group_offsets.OffsetCommitResponsePartition,
        )
        return group_offsets.OffsetCommitResponse(topics=done)

    def _add_partitions_to_txn(self, request: Any) -> Any:
        return transactions.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                transactions.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        transactions.AddPartitionsToTxnPartitionResult(partition_index=index)
                        for index in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def _txn_offset_commit(self, request: Any) -> Any:
        done = mirror(
            request.topics,
            transactions.TxnOffsetCommitResponseTopic,
            transactions.TxnOffsetCommitResponsePartition,
        )
        return transactions.TxnOffsetCommitResponse(topics=done)

    def _create_topics(self, request: Any) -> Any:
        created = [topics.CreatableTopicResult(name=topic.name) for topic in request.topics]
        return topics.CreateTopicsResponse(topics=created)

    def _delete_topics(self, request: Any) -> Any:
        names = request.topic_names or [topic.name for topic in request.topics]
        gone = [topics.DeletableTopicResult(name=name) for name in names]
        return topics.DeleteTopicsResponse(responses=gone)

    def _create_partitions(self, request: Any) -> Any:
        grown = [topics.CreatePartitionsTopicResult(name=topic.name) for topic in request.topics]
        return topics.CreatePartitionsResponse(results=grown)

    def _delete_records(self, request: Any) -> Any:
        done = mirror(
            request.topics, topics.DeleteRecordsTopicResult, topics.DeleteRecordsPartitionResult
        )
        return topics.DeleteRecordsResponse(topics=done)

    def _describe_configs(self, request: Any) -> Any:
        described = [like(configs.DescribeConfigsResult, item) for item in request.resources]
        for result in described:
            result.configs = []
        return configs.DescribeConfigsResponse(results=described)

    def _incremental_alter_configs(self, request: Any) -> Any:
        done = [like(configs.AlterConfigsResourceResponse, item) for item in request.resources]
        return configs.IncrementalAlterConfigsResponse(responses=done)

    def _describe_groups(self, request: Any) -> Any:
        described = [
            classic_groups.DescribedGroup(group_id=group, group_state="Empty")
            for group in request.groups
        ]
        return classic_groups.DescribeGroupsResponse(groups=described)

    def _consumer_group_describe(self, request: Any) -> Any:
        unknown = [
            consumer_groups.DescribedGroup(group_id=group, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            for group in request.group_ids
        ]
        return consumer_groups.ConsumerGroupDescribeResponse(groups=unknown)

    def _delete_groups(self, request: Any) -> Any:
        gone = [classic_groups.DeletableGroupResult(group_id=name) for name in request.groups_names]
        return classic_groups.DeleteGroupsResponse(results=gone)


def like(response_class: type[Any], asked: Any, **values: Any) -> Any:
    """An answer that repeats what was asked wherever both have a field of that name."""
    shared = {
        item.name: getattr(asked, item.name)
        for item in fields(response_class)
        if hasattr(asked, item.name)
    }
    return response_class(**(shared | values))


def mirror(
    asked: list[Any], topic_class: type[Any], partition_class: type[Any], **values: Any
) -> list[Any]:
    """One answer for each topic and partition asked about."""
    return [
        like(
            topic_class,
            topic,
            partitions=[like(partition_class, item, **values) for item in topic.partitions],
        )
        for topic in asked
    ]


def uncommitted(asked: list[Any], topic_class: type[Any], partition_class: type[Any]) -> list[Any]:
    return [
        like(
            topic_class,
            topic,
            partitions=[
                partition_class(partition_index=index, committed_offset=-1, metadata="")
                for index in topic.partition_indexes
            ],
        )
        for topic in asked
    ]


@contextmanager
def recording() -> Iterator[Recorder]:
    """A recorder that serves on a thread of its own while clients run on this one."""
    recorder = Recorder()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> None:
        server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
        recorder.port = server.sockets[0].getsockname()[1]

    async def stop() -> None:
        for writer in recorder.writers:
            writer.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    asyncio.run_coroutine_threadsafe(listen(), loop).result(TIMEOUT_S)
    try:
        yield recorder
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()


def run_confluent(address: str) -> None:
    common: dict[str, Any] = {"bootstrap.servers": address}
    producer = Producer({**common, "enable.idempotence": True})
    producer.produce(TOPIC, b"value", key=b"key", headers={"h": b"1"})
    producer.flush(TIMEOUT_S)

    def consume(**settings: str) -> None:
        consumer = Consumer(
            {**common, "group.id": GROUP, "auto.offset.reset": "earliest", **settings}
        )
        consumer.subscribe([TOPIC])
        message = consumer.poll(TIMEOUT_S)
        if message is not None:
            consumer.commit(message=message, asynchronous=False)
        consumer.poll(4)  # long enough for a heartbeat
        consumer.close()

    consume()
    consume(**{"group.protocol": "consumer"})
    share = ShareConsumer({**common, "group.id": "sharers"})
    share.subscribe([TOPIC])
    share.poll(3)
    share.close()

    writer = Producer({**common, "transactional.id": "golden"})
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    writer.produce(TOPIC, b"value")
    reader = Consumer({**common, "group.id": GROUP})
    writer.send_offsets_to_transaction(
        [TopicPartition(TOPIC, 0, 1)], reader.consumer_group_metadata(), TIMEOUT_S
    )
    writer.commit_transaction(TIMEOUT_S)
    reader.close()

    admin = confluent.AdminClient(common)
    admin.list_topics(timeout=TIMEOUT_S)
    entry = confluent.ConfigEntry(
        "retention.ms", "1000", incremental_operation=confluent.AlterConfigOpType.SET
    )
    resource = confluent.ConfigResource(
        confluent.ResourceType.TOPIC, TOPIC, incremental_configs=[entry]
    )
    for futures in (
        admin.create_topics([confluent.NewTopic(TOPIC, 3, 1, config={"retention.ms": "1000"})]),
        admin.create_partitions([confluent.NewPartitions(TOPIC, 5)]),
        admin.describe_configs([confluent.ConfigResource(confluent.ResourceType.TOPIC, TOPIC)]),
        admin.incremental_alter_configs([resource]),
        admin.describe_consumer_groups([GROUP]),
        admin.delete_consumer_groups([GROUP]),
        admin.delete_records([TopicPartition(TOPIC, 0, 1)]),
        admin.delete_topics([TOPIC]),
    ):
        wait_all(futures)
    admin.list_consumer_groups().result(TIMEOUT_S)


def wait_all(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        with suppress(Exception):
            future.result(TIMEOUT_S)


def run_kafka_python(address: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    producer.send(TOPIC, b"value", key=b"key").get(TIMEOUT_S)
    producer.close(timeout=TIMEOUT_S)

    consumer = kafka.KafkaConsumer(
        TOPIC, bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest"
    )
    consumer.poll(timeout_ms=5000)
    consumer.commit()
    consumer.poll(timeout_ms=4000)
    consumer.close()

    writer = kafka.KafkaProducer(bootstrap_servers=address, transactional_id="golden")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send(TOPIC, b"value")
    writer.commit_transaction()
    writer.close(timeout=TIMEOUT_S)

    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    topic = kafka.admin.NewTopic(name=TOPIC, num_partitions=3, replication_factor=1)
    for ask, *arguments in (
        (admin.create_topics, [topic]),
        (admin.describe_topics, [TOPIC]),
        (admin.describe_cluster,),
        (admin.list_groups,),
        (admin.describe_groups, [GROUP]),
        (admin.delete_topics, [TOPIC]),
    ):
        with suppress(kafka.errors.KafkaError, KeyError):  # only the question matters here
            ask(*arguments)
    admin.close()


def run_aiokafka(address: str) -> None:
    async def scenario() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address) as producer:
            await producer.send_and_wait(TOPIC, b"value", key=b"key")
        consumer = aiokafka.AIOKafkaConsumer(
            TOPIC, bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest"
        )
        async with consumer:
            await consumer.getone()
            await consumer.commit()
            await asyncio.sleep(4)  # long enough for a heartbeat
        writer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id="golden")
        async with writer, writer.transaction():
            await writer.send(TOPIC, b"value")
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        await admin.create_topics([aiokafka.admin.NewTopic(TOPIC, 3, 1)])
        await admin.delete_topics([TOPIC])
        await admin.close()

    asyncio.run(asyncio.wait_for(scenario(), 3 * TIMEOUT_S))


def run_kcat(address: str) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        raise SystemExit("kcat is not installed")
    for arguments, text in (
        (["-L"], b""),
        (["-P", "-t", TOPIC], b"value\n"),
        (["-C", "-t", TOPIC, "-e", "-o", "beginning", "-c", "1"], b""),
        (["-Q", "-t", f"{TOPIC}:0:-1"], b""),
        (["-G", GROUP, "-e", "-c", "1", "-X", "auto.offset.reset=earliest", TOPIC], b""),
    ):
        command = [kcat, "-b", address, *arguments]
        subprocess.run(command, input=text, capture_output=True, timeout=TIMEOUT_S, check=False)


CLIENTS: dict[str, Callable[[str], None]] = {
    "confluent": run_confluent,
    "kafka_python": run_kafka_python,
    "aiokafka": run_aiokafka,
    "kcat": run_kcat,
}


def capture(client: str) -> None:
    with recording() as recorder:
        CLIENTS[client](f"127.0.0.1:{recorder.port}")
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob(f"{client}_*.hex"):
        old.unlink()
    for name, frame in recorder.frames.items():
        lines = textwrap.wrap(frame.hex(), 80)
        (GOLDEN / f"{client}_{name}.hex").write_text("\n".join(lines) + "\n")
    print(f"{client}: {len(recorder.frames)} kinds of requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", choices=[*CLIENTS, []], metavar="client")
    for client in parser.parse_args().clients or CLIENTS:
        capture(client)


if __name__ == "__main__":
    main()
