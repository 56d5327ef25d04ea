"""A version that is listed is a version that works."""

import pytest

from compat.adapter import MakeTopic
from compat.raw import RawConnection
from compat.wire import batch, produce, topic_id
from ottla.errors import ErrorCode
from ottla.protocol.api import APIS, ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)


def listed(raw: RawConnection) -> dict[ApiKey, range]:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    return {
        ApiKey(one.api_key): range(one.min_version, one.max_version + 1)
        for one in raw.ask(request, 4).api_keys
    }


def test_every_listed_version_of_every_request_is_answered(raw: RawConnection) -> None:
    for key, versions in listed(raw).items():
        for version in versions:
            if version in APIS[key].versions:  # Produce is listed from 0 for old librdkafka
                request = APIS[key].request_class()
                if isinstance(request, ProduceRequest):
                    request.acks = 1  # 0 would have no answer
                raw.ask(request, version)


@pytest.mark.parametrize("version", APIS[ApiKey.METADATA].versions)
def test_every_version_of_metadata_names_the_leader(
    raw: RawConnection, make_topic: MakeTopic, version: int
) -> None:
    name = make_topic(partitions=2)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    answer = raw.ask(request, version)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, name)
    assert [one.leader_id for one in topic.partitions] == [0, 0]
    assert [one.node_id for one in answer.brokers] == [0]
    everything = raw.ask(MetadataRequest(topics=[] if version == 0 else None), version)
    assert name in {one.name for one in everything.topics}
    if version > 0:
        assert raw.ask(MetadataRequest(topics=[]), version).topics == []


def test_metadata_goes_by_id_as_well(raw: RawConnection, make_topic: MakeTopic) -> None:
    name = make_topic()
    known, unknown = topic_id(raw, name), type(topic_id(raw, name))(b"\x09" * 16)
    for version in (12, 13):
        wanted = [MetadataRequestTopic(name=None, topic_id=one) for one in (known, unknown)]
        found, missing = raw.ask(MetadataRequest(topics=wanted), version).topics
        assert (found.error_code, found.name, found.topic_id) == (0, name, known)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert missing.topic_id == unknown


def test_metadata_refuses_a_name_that_cannot_be(raw: RawConnection) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="no spaces, please")])
    (topic,) = raw.ask(request, 12).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", APIS[ApiKey.CREATE_TOPICS].versions)
def test_every_version_makes_grows_and_deletes_topics(raw: RawConnection, version: int) -> None:
    name = f"made-by-version-{version}"
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    made = raw.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), version)
    assert [(one.name, one.error_code) for one in made.topics] == [(name, 0)]
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=2, assignments=None)], timeout_ms=1000
    )
    grown = raw.ask(grow, min(version, 3))
    assert [(one.name, one.error_code) for one in grown.results] == [(name, 0)]
    assert produce(raw, name, batch(), partition=1).error_code == 0
    delete = DeleteTopicsRequest(timeout_ms=1000)
    old = min(version, 6)
    if old >= 6:
        delete.topics = [DeleteTopicState(name=name)]
    else:
        delete.topic_names = [name]
    gone = raw.ask(delete, old)
    assert [(one.name, one.error_code) for one in gone.responses] == [(name, 0)]


def test_a_topic_is_deleted_by_its_id(raw: RawConnection, make_topic: MakeTopic) -> None:
    name = make_topic()
    wanted = topic_id(raw, name)

    def delete() -> tuple[str | None, int]:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=None, topic_id=wanted)], timeout_ms=1000
        )
        (told,) = raw.ask(request, 6).responses
        return told.name, told.error_code

    assert delete() == (name, ErrorCode.NONE)
    assert delete() == (None, ErrorCode.UNKNOWN_TOPIC_ID)
