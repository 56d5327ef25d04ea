"""Apache Kafka's dump tool, its readers and its broker understand the files that Ottla wrote."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat import apache, letters
from compat.apache import ApacheBroker
from compat.letters import CODECS
from compat.ottla_broker import OttlaBroker
from fakes import build
from ottla.config import TopicConfig
from ottla.model import ProducerEpoch, ProducerId
from ottla.records.batch import Marker, MarkerKind
from ottla.storage.files import OsFiles

pytestmark = [pytest.mark.compat, pytest.mark.needs("kafka")]

BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) .*"
    r"producerId: (-?\d+) .* compresscodec: (\w+) crc: \d+ isvalid: (\w+)$",
    re.MULTILINE,
)
RECORD = re.compile(r"^\| offset: (\d+) CreateTime: (\d+) .*key: (\S+) payload: ", re.MULTILINE)
FIRST_OF_SEGMENT = re.compile(
    r"^Non-consecutive offsets in .*\n  -1 is followed by \d+$", re.MULTILINE
)
COMPLAINTS = ("mismatch", "Mismatch", "Non-consecutive", "not found", "Could not", "Exception")


@pytest.fixture(scope="module", params=["SIGTERM", "SIGKILL"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker that has ended, with a topic for every codec."""
    with OttlaBroker(tmp_path_factory.mktemp("written") / "data") as broker:
        for codec in CODECS:
            letters.create_topic(broker.address, f"topic-{codec}", index_interval_bytes=1024)
            letters.send(broker.address, f"topic-{codec}", codec, list(letters.letters(codec)))
        broker.end(signal.Signals[request.param])
    return broker.data


@pytest.mark.parametrize("codec", CODECS)
def test_every_batch_and_record_is_found(written: Path, codec: str) -> None:
    files = letters.segment_files(written / f"topic-{codec}-0", ".log")
    assert len(files) > 1
    text = apache.dump(*files, options=("--deep-iteration", "--print-data-log"))
    batches = BATCH.findall(text)
    assert {(found[5], found[6]) for found in batches} == {(codec, "true")}
    ends = [(int(first), int(last) + 1) for first, last, *_ in batches]
    assert [first for first, _ in ends] == [0, *(end for _, end in ends[:-1])]
    sent = enumerate(letters.letters(codec))
    assert RECORD.findall(text) == [
        (str(offset), str(one.timestamp_ms), one.key.decode()) for offset, one in sent
    ]
    # Of every segment but the first the tool says that its first offset does not follow -1, and of
    # Apache's own as well; anything else that it complains of is a defect.
    text = FIRST_OF_SEGMENT.sub("", text)
    assert not any(word in text for word in COMPLAINTS)


def files_of_all_codecs(written: Path, suffix: str) -> list[Path]:
    directories = (written / f"topic-{codec}-0" for codec in CODECS)
    return [file for one in directories for file in letters.segment_files(one, suffix)]


def test_every_index_is_sound(written: Path) -> None:
    files = [
        *files_of_all_codecs(written, ".index"),
        *files_of_all_codecs(written, ".timeindex"),
    ]
    assert len(files) >= 2 * len(CODECS)
    text = apache.dump(*files, options=("--index-sanity-check",))
    assert text.count("passed sanity check.") == len(files), text
    text = apache.dump(*files)
    assert text.count("offset: ") > len(files)
    assert not any(word in text for word in COMPLAINTS), text


def test_snapshots_of_producers_are_read(written: Path) -> None:
    files = files_of_all_codecs(written, ".snapshot")
    assert len(files) >= len(CODECS)
    found = re.findall(
        r"producerId: \d+ .* lastSequence: (\d+) lastOffset: (\d+) ", apache.dump(*files)
    )
    # One producer wrote a topic: sequences and offsets run side by side up to the snapshot.
    assert found == [(str(int(file.stem) - 1),) * 2 for file in files]


def test_aborted_transactions_are_read(tmp_path: Path) -> None:
    log = build.log(OsFiles(), TopicConfig(segment_bytes=1024), directory=tmp_path)
    expected = []
    for number in range(12):
        batch = build.batch(
            2, producer_id=5, producer_epoch=0, base_sequence=number * 2, is_transactional=True
        )
        first = log.append_as_leader(batch, build.EPOCH, build.NOW_MS).base_offset
        kind = MarkerKind.ABORT if number % 3 == 0 else MarkerKind.COMMIT
        end = log.append_marker(
            Marker(kind, 0), ProducerId(5), ProducerEpoch(0), build.EPOCH, build.NOW_MS
        )
        if kind is MarkerKind.ABORT:
            expected.append((str(first), str(end.last_offset)))
    log.roll(build.NOW_MS)  # what the last segment has aborted has a file once it is sealed
    log.close()
    text = apache.dump(*letters.segment_files(tmp_path, ".txnindex"))
    found = re.findall(r"producerId: 5 firstOffset: (\d+) lastOffset: (\d+) ", text)
    assert found == expected
    text = apache.dump(
        *letters.segment_files(tmp_path, ".log"), options=("--deep-iteration", "--print-data-log")
    )
    assert re.findall(r"endTxnMarker: (\w+)", text) == ["ABORT", "COMMIT", "COMMIT"] * 4
    assert "isvalid: false" not in text


@pytest.fixture(scope="module")
def adopting(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    """A broker of Apache Kafka whose partitions were replaced with ours while it was down."""
    with ApacheBroker(tmp_path_factory.mktemp("adopting") / "broker") as broker:
        for codec in CODECS:
            letters.create_topic(broker.address, f"topic-{codec}")
        broker.end(signal.SIGTERM)
        for codec in CODECS:
            letters.adopt(written / f"topic-{codec}-0", broker.data / f"topic-{codec}-0")
        broker.start()
        yield broker


@pytest.mark.parametrize("codec", CODECS)
def test_a_broker_of_apache_kafka_goes_on_where_ottla_ended(
    adopting: ApacheBroker, codec: str
) -> None:
    topic = f"topic-{codec}"
    sent = list(letters.letters(codec))
    assert letters.read_all(adopting.address, topic, count_min=len(sent)) == sent
    letters.send(adopting.address, topic, codec, sent[:100], plainly=True)
    assert letters.read_all(adopting.address, topic) == [*sent, *sent[:100]]
