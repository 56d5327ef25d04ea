"""Files that are not what was written: a torn tail is cut off, a corrupt middle is never served."""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from crash.load import SILENT, Letter, Load, letter_of, promises_of, read_all
from crash.processes import PATIENCE_S, BrokerProcess, broker_process, run_ottla
from crash.topics import admin_of, create_topics
from fakes.consumed import value_of
from ottla import testing
from ottla.records.batch import HEADER_BYTES, BatchHeader, batches

_CUTS: Final = 8
_POLLS_MAX: Final = 100
_SEGMENTED: Final = ("segmented", 0)
_WHOLE: Final = ("whole", 0)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The directory of a broker that was killed, and how many records each topic had then."""
    data = tmp_path_factory.mktemp("killed") / "data"
    with broker_process(data) as broker:
        settings = {"segmented": {"segment.bytes": "16384"}, "whole": {}}
        create_topics(admin_of(broker.address), settings)
        load = Load(broker.address, "writer", [_SEGMENTED, _WHOLE], is_idempotent=True)
        load.start()
        load.wait_acked(2000)
        load.stop()
        broker.kill()
    return data, {topic: len(acked) for (topic, _), acked in load.acked.items()}


@pytest.fixture
def data(killed: tuple[Path, dict[str, int]], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(killed[0], tmp_path / "data")


def _segments(data: Path, topic: str) -> list[Path]:
    return sorted((data / f"{topic}-0").glob("*.log"))


def _batches(segment: Path) -> list[tuple[int, BatchHeader]]:
    """Position and header of every whole batch."""
    found, position = [], 0
    for header, content in batches(segment.read_bytes()):
        found.append((position, header))
        position += len(content)
    return found


def _read_from(address: str, offset: int, topic: str) -> tuple[list[Letter], KafkaError | None]:
    """Records from an offset on, without the client's own check, and the error that ended them."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "check.crcs": False,
            "enable.partition.eof": True,
            "fetch.error.backoff.ms": 10,
            "logger": SILENT,
        }
    )
    found: list[Letter] = []
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        for _ in range(_POLLS_MAX):
            for message in consumer.consume(10_000, timeout=0.2):
                if (error := message.error()) is None:
                    found.append(letter_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found, None
                else:
                    return found, error
    finally:
        consumer.close()
    raise AssertionError(f"{topic} from {offset} on never came to an end")


@pytest.mark.parametrize("number", range(_CUTS))
def test_a_torn_tail_is_cut_and_everything_before_it_is_served(
    data: Path, killed: tuple[Path, dict[str, int]], rng: Random, number: int
) -> None:
    segment = _segments(data, "whole")[-1]
    content = segment.read_bytes()
    cut_at = rng.randrange(len(content))
    rest = rng.randbytes(rng.randrange(200)) if number % 2 else b""  # half of them end in noise
    torn = content[:cut_at] + rest
    segment.write_bytes(torn)
    # What follows the cut may be by chance what was there: one byte in 256 is.
    whole = _whole_before(content, _same_bytes(content, torn))
    with testing.broker(data=data) as address:
        found = read_all(address, [_WHOLE, _SEGMENTED])
        assert [letter.number for letter in found[_WHOLE]] == list(range(whole))
        assert len(found[_SEGMENTED]) == killed[1]["segmented"]
        later = Load(address, "later", [_WHOLE], is_idempotent=True)
        later.start()
        later.wait_acked(10)
        later.stop()
        promised = promises_of([later])[later][_WHOLE]
        assert promised[0].offset == whole, "the next record follows the last one that is left"
        after = read_all(address, [_WHOLE])[_WHOLE]
    assert [letter.offset for letter in after] == list(range(whole + len(promised)))


def _same_bytes(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _whole_before(content: bytes, cut_at: int) -> int:
    """Where the log must end when only the first `cut_at` bytes are left."""
    end = 0
    position = 0
    for header, batch in batches(content):
        position += len(batch)
        if position > cut_at:
            break
        end = header.next_offset
    return end


def _flip_a_bit_in_the_middle(data: Path, rng: Random) -> tuple[Path, int, BatchHeader]:
    """Damage a value, where only the checksum can tell: segment, position and header."""
    segment = rng.choice(_segments(data, "segmented")[1:-1])
    position, header = rng.choice(_batches(segment)[1:-1])
    within = segment.read_bytes()[position + HEADER_BYTES : position + header.size_bytes]
    places = [place for place, byte in enumerate(within) if byte == ord(".")]
    with segment.open("r+b") as file:  # in place: a broker may have it open
        file.seek(position + HEADER_BYTES + rng.choice(places))
        file.write(bytes([ord(".") ^ 1]))
    return segment, position, header


def test_a_corrupt_middle_is_reported_and_never_served(
    data: Path,
    killed: tuple[Path, dict[str, int]],
    rng: Random,
    caplog: pytest.LogCaptureFixture,
) -> None:
    segment, position, header = _flip_a_bit_in_the_middle(data, rng)
    start, end = header.base_offset, header.next_offset
    with caplog.at_level(logging.INFO, "ottla"), testing.broker(data=data) as address:
        before, error = _read_from(address, 0, "segmented")
        assert [letter.number for letter in before] == list(range(start))
        assert error is not None
        assert error.code() == KafkaError.INVALID_MSG
        for inside in range(start, end):
            nothing, error = _read_from(address, inside, "segmented")
            assert not nothing
            assert error is not None
            assert error.code() == KafkaError.INVALID_MSG
        behind, error = _read_from(address, end, "segmented")
        assert error is None
        assert [letter.number for letter in behind] == list(range(end, killed[1]["segmented"]))
        assert len(read_all(address, [_WHOLE])[_WHOLE]) == killed[1]["whole"]
    (said,) = [record for record in caplog.records if record.getMessage() == "log damaged"]
    assert vars(said)["tp"] == "segmented-0"
    assert (vars(said)["range"].start_offset, vars(said)["range"].end_offset) == (start, end)
    verified = run_ottla("log", "verify", str(data))
    assert verified.returncode == 1
    assert f"{segment} at byte {position}" in verified.stderr


def _cut_inside_a_batch(data: Path) -> tuple[int, int]:
    segment = _segments(data, "segmented")[1]
    position, header = _batches(segment)[-2]
    _truncate(segment, position + header.size_bytes // 2)
    return header.base_offset, _base_behind(data, segment)


def _cut_between_batches(data: Path) -> tuple[int, int]:
    segment = _segments(data, "segmented")[1]
    position, header = _batches(segment)[-2]
    _truncate(segment, position)
    return header.base_offset, _base_behind(data, segment)


def _remove_a_segment(data: Path) -> tuple[int, int]:
    segment = _segments(data, "segmented")[1]
    end_offset = _base_behind(data, segment)
    segment.unlink()
    return int(segment.stem), end_offset


def _remove_the_first_segment(data: Path) -> tuple[int, int]:
    segment = _segments(data, "segmented")[0]
    end_offset = _base_behind(data, segment)
    segment.unlink()
    return int(segment.stem), end_offset


def _zero_a_sector(data: Path) -> tuple[int, int]:
    """The whole of one batch, and the headers of the two around it."""
    segment = _segments(data, "segmented")[1]
    found = _batches(segment)
    (start, first), (end, last) = found[1], found[3]
    with segment.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end + HEADER_BYTES - start))
    return first.base_offset, last.next_offset


def _base_behind(data: Path, segment: Path) -> int:
    return min(int(file.stem) for file in _segments(data, "segmented") if file.stem > segment.stem)


def _truncate(segment: Path, size_bytes: int) -> None:
    with segment.open("r+b") as file:
        file.truncate(size_bytes)


_HARMS: Final = (
    _cut_inside_a_batch,
    _cut_between_batches,
    _remove_a_segment,
    _remove_the_first_segment,
    _zero_a_sector,
)


@pytest.mark.parametrize("was_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("harm", _HARMS)
def test_what_a_segment_has_lost_is_an_error_and_what_follows_is_served(
    data: Path,
    killed: tuple[Path, dict[str, int]],
    harm: Callable[[Path], tuple[int, int]],
    was_clean: bool,
) -> None:
    count = killed[1]["segmented"]
    if was_clean:
        with testing.broker(data=data):
            pass
    start, end = harm(data)
    verified = run_ottla("log", "verify", str(data))
    assert verified.returncode == 1
    said = f"offsets {start} to {end - 1} are damaged or missing"
    assert said in verified.stderr
    for round_ in range(2):
        with testing.broker(data=data) as address:
            before, error = _read_from(address, 0, "segmented")
            assert [letter.offset for letter in before] == list(range(start))
            assert error is not None
            assert error.code() == KafkaError.INVALID_MSG
            nothing, error = _read_from(address, end - 1, "segmented")
            assert (nothing, error is not None) == ([], True)
            behind, error = _read_from(address, end, "segmented")
            assert error is None
            assert [letter.offset for letter in behind] == list(range(end, count))
            later = Load(address, f"later {round_}", [_SEGMENTED], is_idempotent=True)
            later.start()
            later.wait_acked(10)
            later.stop()
            promised = promises_of([later])[later][_SEGMENTED]
            assert promised[0].offset == count, "no offset is used twice"
            count += len(promised)
    assert said in run_ottla("log", "verify", str(data)).stderr


@pytest.mark.parametrize("harm", ["cut", "removed"])
def test_a_log_that_lost_its_end_after_a_clean_stop_goes_on_behind_it(
    data: Path, killed: tuple[Path, dict[str, int]], harm: str
) -> None:
    count = killed[1]["whole"]
    with testing.broker(data=data):
        pass
    (segment,) = _segments(data, "whole")
    start = 0
    if harm == "removed":
        segment.unlink()
    else:
        position, header = _batches(segment)[-3]
        start = header.base_offset
        _truncate(segment, position)
    assert run_ottla("log", "verify", str(data)).returncode == 1
    for _ in range(2):
        with testing.broker(data=data) as address:
            before, error = _read_from(address, 0, "whole")
            assert [letter.offset for letter in before] == list(range(start))
            assert error is not None
            assert error.code() == KafkaError.INVALID_MSG
            later = Load(address, "later", [_WHOLE], is_idempotent=True)
            later.start()
            later.wait_acked(10)
            later.stop()
            assert promises_of([later])[later][_WHOLE][0].offset == count
            behind, error = _read_from(address, killed[1]["whole"], "whole")
            assert error is None
            count = behind[-1].offset + 1
            assert [letter.offset for letter in behind] == list(range(killed[1]["whole"], count))


@pytest.mark.slow
@pytest.mark.parametrize("was_clean", [True, False], ids=["clean", "killed"])
def test_a_log_whose_directory_is_gone_goes_on_behind_its_known_end(
    data: Path, killed: tuple[Path, dict[str, int]], was_clean: bool
) -> None:
    """Readers get an error where records were, producers an offset that nobody had."""
    with testing.broker(data=data):
        pass
    if not was_clean:
        (data / ".clean-shutdown").unlink()
    shutil.rmtree(data / "whole-0")
    known_end = count = killed[1]["whole"]
    if was_clean:  # else nothing tells that its topic was not deleted
        verified = run_ottla("log", "verify", str(data))
        assert verified.returncode == 1
        assert f"offsets 0 to {known_end - 1} are damaged or missing" in verified.stderr
    for _ in range(2):
        with testing.broker(data=data) as address:
            for lost in (0, known_end - 1):
                nothing, error = _read_from(address, lost, "whole")
                assert not nothing
                assert error is not None
                assert error.code() == KafkaError.INVALID_MSG
            assert len(read_all(address, [_SEGMENTED])[_SEGMENTED]) == killed[1]["segmented"]
            later = Load(address, "later", [_WHOLE], is_idempotent=True)
            later.start()
            later.wait_acked(10)
            later.stop()
            assert promises_of([later])[later][_WHOLE][0].offset == count, "no offset is used twice"
            behind, error = _read_from(address, known_end, "whole")
            assert error is None
            count = behind[-1].offset + 1
            assert [letter.offset for letter in behind] == list(range(known_end, count))
    verified = run_ottla("log", "verify", str(data))
    assert verified.returncode == 1
    assert f"offsets 0 to {known_end - 1} are damaged or missing" in verified.stderr
    (data / "whole-0" / "corrupt-ranges").unlink()  # what was lost is given up
    with testing.broker(data=data) as address:
        assert len(read_all(address, [_WHOLE])[_WHOLE]) == count - known_end


def test_damage_outlives_a_clean_restart(data: Path, rng: Random) -> None:
    """What is known to be corrupt is not forgotten because the broker was stopped properly."""
    _, _, header = _flip_a_bit_in_the_middle(data, rng)
    for _ in range(2):
        with testing.broker(data=data) as address:
            nothing, error = _read_from(address, header.base_offset, "segmented")
            assert not nothing
            assert error is not None
            assert error.code() == KafkaError.INVALID_MSG


@pytest.mark.slow
def test_a_bit_that_flips_under_a_running_broker_is_found_and_never_served(
    tmp_path: Path, rng: Random
) -> None:
    """What was written down as safely on disk is read again, and a flip in it is found."""
    data = tmp_path / "data"
    scrub = ("--set=log.scrub.interval.ms=100", "--set=log.scrub.max.bytes.per.second=67108864")
    with broker_process(data, *scrub, "--metrics=127.0.0.1:0") as broker:
        admin = admin_of(broker.address)
        create_topics(admin, {"segmented": {"segment.bytes": "16384"}})
        load = Load(broker.address, "writer", [_SEGMENTED], is_idempotent=True)
        load.start()
        load.wait_acked(2000)
        load.stop()
        count = load.acked_count
        assert len(read_all(broker.address, [_SEGMENTED])[_SEGMENTED]) == count
        _, _, header = _flip_a_bit_in_the_middle(data, rng)
        start, end = header.base_offset, header.next_offset
        _wait_said(broker, "log damaged")
        before, error = _read_from(broker.address, 0, "segmented")
        assert [letter.number for letter in before] == list(range(start))
        assert error is not None
        assert error.code() == KafkaError.INVALID_MSG
        behind, error = _read_from(broker.address, end, "segmented")
        assert error is None
        assert [letter.number for letter in behind] == list(range(end, count))
        broker.kill()
        broker.start()
        nothing, error = _read_from(broker.address, start, "segmented")
        assert not nothing
        assert error is not None
        assert broker.stop() == 0
    assert broker.said().count("log damaged") == 2, "once when found, once at the next start"


def _wait_said(broker: BrokerProcess, text: str) -> None:
    """Returns when the broker's log has this in it."""
    until_s = time.monotonic() + PATIENCE_S
    while text not in broker.said():
        assert time.monotonic() < until_s, broker.said()
        time.sleep(0.05)


def _write_transactions(address: str, count: int) -> list[str]:
    """Write transactions of which every third commits; the values of those."""
    settings = {"bootstrap.servers": address, "transactional.id": "mover", "logger": SILENT}
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_S)
    committed = []
    for number in range(count):
        producer.begin_transaction()
        producer.produce("moved", f"{number}".ljust(500, "."))
        assert producer.flush(PATIENCE_S) == 0, "or an abort would drop it here"
        if number % 3:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            committed.append(f"{number}")
    return committed


def _read_committed(address: str) -> list[str]:
    """The values that a reader of committed records sees, to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "logger": SILENT,
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition("moved", 0, 0)])
        for _ in range(_POLLS_MAX):
            for message in consumer.consume(10_000, timeout=0.2):
                if (error := message.error()) is None:
                    found.append(value_of(message).decode().rstrip("."))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
    finally:
        consumer.close()
    raise AssertionError("it never came to an end")


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["flipped", "removed"])
def test_a_reader_of_committed_records_sees_no_aborted_one_whatever_becomes_of_the_lists(
    harm: str, tmp_path: Path, rng: Random, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    with testing.broker(data=data) as address:
        create_topics(admin_of(address), {"moved": {"segment.bytes": "4096"}})
        committed = _write_transactions(address, 24)
        assert _read_committed(address) == committed
    lists = sorted((data / "moved-0").glob("*.txnindex"))
    assert len(lists) > 2, "of sealed segments and of the active one"
    for path in lists:
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content) if harm == "flipped" else path.unlink()
    assert run_ottla("log", "verify", str(data)).returncode == 1
    with caplog.at_level(logging.ERROR, "ottla"), testing.broker(data=data) as address:
        assert _read_committed(address) == committed
    said = [record.getMessage() for record in caplog.records]
    assert said == ["list of aborted transactions rebuilt"] * len(lists)
    assert run_ottla("log", "verify", str(data)).returncode == 0


def test_damaged_metadata_of_a_log_costs_time_and_nothing_else(
    data: Path, killed: tuple[Path, dict[str, int]], rng: Random
) -> None:
    derived = ["*.index", "*.timeindex", "*.txnindex", "*.snapshot", "log-states"]
    for file in [file for pattern in derived for file in data.rglob(pattern)]:
        content = bytearray(file.read_bytes())
        if content and rng.random() < 0.7:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            file.write_bytes(content)
        else:
            file.unlink()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (data / name).write_bytes(rng.randbytes(50))
    with testing.broker(data=data) as address:
        found = read_all(address, [_WHOLE, _SEGMENTED])
    assert {topic: len(letters) for (topic, _), letters in found.items()} == killed[1]
    assert run_ottla("log", "verify", str(data)).returncode == 0
