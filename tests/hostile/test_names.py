"""Names of topics and settings that are paths, or not names at all."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes import build
from hostile.attacked_broker import MIB, PATIENCE_S, AttackedBroker, wait_until
from hostile.control import served_throughout
from hostile.wire import RawClient, create_topic, produce_request, raw_client
from ottla.config import BrokerConfig
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

NAMES = {
    "a path upwards": "../../etc/x",
    "an absolute path": "/etc/x",
    "a dot": ".",
    "two dots": "..",
    "nothing": "",
    "250 characters": "x" * 250,
    "32767 characters": "x" * 32_767,
    "a zero byte": "or\0ders",
    "a newline": "or\nders",
    "a space": "or ders",
    "another script": "消息",
    "a letter with an accent": "Größe",
    "a right-to-left mark": "or\u202eders",
    "a shell's dream": "$(touch x)",
}
TOPIC, BROKER = 2, 4


@contextmanager
def nothing_new_on_disk(broker: AttackedBroker) -> Iterator[None]:
    """No directory appears, neither in the data directory nor beside it."""

    def seen() -> set[str]:
        inside = {path.name for path in broker.data.iterdir() if path.is_dir()}
        return inside | {path.name for path in broker.data.parent.iterdir()}

    before = seen()
    yield
    assert seen() == before


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_that_is_no_topic_name_is_refused_everywhere(
    broker: AttackedBroker, kind: str
) -> None:
    name = NAMES[kind]
    with nothing_new_on_disk(broker), raw_client(broker) as client:
        for version in (4, 8, 9, 13):
            asked = MetadataRequest(
                topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
            )
            (described,) = client.ask(asked, version).topics
            assert described.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        for version in (2, 5, 7):
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            (created,) = client.ask(CreateTopicsRequest(topics=[topic]), version).topics
            assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert created.name == name
        produced = client.ask(produce_request(TopicPartition(name, 0), bytes(build.batch())), 9)
        assert produced.responses[0].partition_responses[0].error_code in {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        (deleted,) = client.ask(DeleteTopicsRequest(topic_names=[name]), 4).responses
        assert deleted.error_code in {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        }


def test_a_name_of_249_characters_is_a_name(broker: AttackedBroker) -> None:
    create_topic(broker, "x" * 249)
    with raw_client(broker) as client:
        request = produce_request(TopicPartition("x" * 249, 0), bytes(build.batch()))
        assert client.ask(request, 9).responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (2**31 - 1, 1, ErrorCode.POLICY_VIOLATION),
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 2**15 - 1, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_numbers_of_partitions_that_no_machine_has_cost_nothing(
    broker: AttackedBroker, partitions: int, replicas: int, code: ErrorCode
) -> None:
    topic = CreatableTopic(name="enormous", num_partitions=partitions, replication_factor=replicas)
    create_topic(broker, "grown")
    growing = CreatePartitionsTopic(name="grown", count=2**31 - 1, assignments=None)
    with (
        nothing_new_on_disk(broker),
        broker.memory_grows_less_than(MIB),
        raw_client(broker) as client,
    ):
        (created,) = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics
        assert created.error_code == code
        (grown,) = client.ask(CreatePartitionsRequest(topics=[growing]), 3).results
        assert grown.error_code == ErrorCode.POLICY_VIOLATION


@pytest.mark.slow
def test_hundreds_of_logs_come_and_go_without_stopping_the_loop(
    broker: AttackedBroker, report: Callable[[str], None]
) -> None:
    """Each waits for the disk several times; between them, and meanwhile, others are served."""
    topic = CreatableTopic(name="wide", num_partitions=300, replication_factor=1)
    with served_throughout(broker) as control, raw_client(broker) as client:
        (created,) = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7).topics
        assert created.error_code == ErrorCode.NONE
        request = DeleteTopicsRequest(topic_names=["wide"], timeout_ms=60_000)
        (deleted,) = client.ask(request, 4).responses
        assert deleted.error_code == ErrorCode.NONE
        control.wait_round_trips(3)
    report(control.figures())
    assert not list(broker.data.glob("wide-*"))


def test_twenty_thousand_names_in_one_request_create_a_few_topics_and_stop_nobody(
    broker: AttackedBroker, report: Callable[[str], None]
) -> None:
    names = [f"asked.for-{number}" for number in range(20_000)]
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
    )
    with served_throughout(broker) as control, raw_client(broker) as client:
        first = _created(client.ask(request, 9))
        control.wait_round_trips(1)
        wait_until(lambda: len(_created(client.ask(request, 9))) > len(first))
        second = _created(client.ask(request, 9))
        assert len(first) == BrokerConfig().auto_created_per_request_max
        assert first < second, "who asks again gets the next ones"
        existing = DeleteTopicsRequest(topic_names=sorted(second), timeout_ms=60_000)
        codes = {one.error_code for one in client.ask(existing, 4).responses}
        assert codes == {ErrorCode.NONE}
    report(control.figures())


def _created(answer: MetadataResponse) -> set[str]:
    """The topics that exist; all others must be said to come."""
    codes = {topic.name or "": topic.error_code for topic in answer.topics}
    assert set(codes.values()) <= {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
    return {name for name, code in codes.items() if code == ErrorCode.NONE}


def test_ten_thousand_topics_in_one_request_are_refused_one_by_one(
    broker: AttackedBroker,
) -> None:
    names = [f"many-{number % 9000}" for number in range(10_000)]
    topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=9) for n in names]
    with nothing_new_on_disk(broker), raw_client(broker) as client:
        answered = client.ask(CreateTopicsRequest(topics=topics, validate_only=True), 7).topics
    codes = {topic.name: topic.error_code for topic in answered}
    assert len(codes) == 9000
    assert set(codes.values()) == {
        ErrorCode.INVALID_REQUEST,  # named twice
        ErrorCode.INVALID_REPLICATION_FACTOR,
    }


SETTINGS = {
    "unknown": ("no.such.setting", "1"),
    "a path": ("log.dir", "/etc"),
    "a class": ("metric.reporters", "org.apache.kafka.common.Evil"),
    "a url": ("sasl.oauthbearer.jwks.endpoint.url", "http://127.0.0.1/x"),
    "a login module": ("sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule"),
    "not a number": ("retention.ms", "$(reboot)"),
    "too large": ("segment.bytes", "9" * 400),
    "null": ("retention.ms", None),
    "empty": ("retention.ms", ""),
    "a nested path": ("../../x", "y"),
}


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("resource", [TOPIC, BROKER])
def test_a_setting_that_does_not_exist_or_makes_no_sense_is_refused(
    broker: AttackedBroker, kind: str, resource: int
) -> None:
    create_topic(broker, "configured")
    setting, value = SETTINGS[kind]
    where = "configured" if resource == TOPIC else ""
    single = IncrementalAlterableConfig(name=setting, config_operation=0, value=value)
    whole = AlterableConfig(name=setting, value=value)
    refused = {ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST}
    with nothing_new_on_disk(broker), raw_client(broker) as client:
        incremental = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=resource, resource_name=where, configs=[single]
                )
            ]
        )
        (answer,) = client.ask(incremental, 1).responses
        assert answer.error_code in refused
        absolute = AlterConfigsRequest(
            resources=[
                AlterConfigsResource(resource_type=resource, resource_name=where, configs=[whole])
            ]
        )
        (answer,) = client.ask(absolute, 2).responses
        assert answer.error_code in refused
        if resource == TOPIC:
            topic = CreatableTopic(
                name="never-made",
                num_partitions=1,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=setting, value=value)],
            )
            (created,) = client.ask(CreateTopicsRequest(topics=[topic]), 7).topics
            assert created.error_code in refused


def _refused_change(
    client: RawClient, resource: int, name: str, setting: str, value: str | None
) -> None:
    change = IncrementalAlterConfigsResource(
        resource_type=resource,
        resource_name=name,
        configs=[IncrementalAlterableConfig(name=setting, config_operation=0, value=value)],
    )
    (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[change]), 1).responses
    assert answer.error_code != ErrorCode.NONE


def test_a_setting_that_names_a_file_or_a_url_opens_neither(
    broker: AttackedBroker, tmp_path: Path
) -> None:
    """Every file that is opened, every connection and every program, as the kernel saw them."""
    if shutil.which("strace") is None:
        pytest.skip("looking at system calls needs strace, which is not installed")
    create_topic(broker, "traced")
    trace = tmp_path / "trace"
    resources = ((TOPIC, "traced"), (BROKER, ""))
    with raw_client(broker) as client:
        for resource, name in resources:  # the broker imports a handler at its first request
            _refused_change(client, resource, name, *SETTINGS["unknown"])
        with traced(broker.process.pid, trace):
            for resource, name in resources:
                for setting, value in SETTINGS.values():
                    _refused_change(client, resource, name, setting, value)
            create_topic(broker, "seen-by-the-trace")
    calls = trace.read_text()
    assert "seen-by-the-trace-0" in calls, "the trace sees nothing"
    own = str(broker.data)
    strange = [
        call
        for call in calls.splitlines()
        if "(" in call and own not in call and not call.split("(")[0].endswith("accept4")
    ]
    assert strange == []


@contextmanager
def traced(pid: int, trace: Path) -> Iterator[None]:
    """Write down what a process opens, connects to and executes."""
    calls = "trace=open,openat,connect,execve,unlink,rename"
    command = ["strace", "-f", "-qq", "-e", calls, "-e", "signal=none", "-o", str(trace)]
    tracer = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.DEVNULL)
    tracer_line = f"TracerPid:\t{tracer.pid}"
    try:
        threads = Path(f"/proc/{pid}/task")
        wait_until(
            lambda: all(tracer_line in (one / "status").read_text() for one in threads.iterdir())
        )
        yield
    finally:
        tracer.terminate()
        tracer.wait(PATIENCE_S)


@pytest.mark.parametrize("name", ["", "x" * 1001, "x" * 30_000])
def test_settings_of_a_group_without_a_name_or_with_an_endless_one_are_refused(
    broker: AttackedBroker, name: str
) -> None:
    setting = IncrementalAlterableConfig(
        name="consumer.session.timeout.ms", config_operation=0, value="50000"
    )
    change = IncrementalAlterConfigsResource(
        resource_type=32, resource_name=name, configs=[setting]
    )
    with raw_client(broker) as client:
        (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[change]), 1).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "1 to 1000 characters" in answer.error_message


@pytest.mark.parametrize("resource", [0, 1, 3, 8, 16, 127, -128])
def test_settings_of_what_has_none_are_refused(broker: AttackedBroker, resource: int) -> None:
    change = IncrementalAlterConfigsResource(resource_type=resource, resource_name="0")
    with raw_client(broker) as client:
        (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[change]), 1).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
