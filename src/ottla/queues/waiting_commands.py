"""Judging a client's batch on a topic with `delay.enable`: which records wait, which cancel.

A batch is judged once, by the leader that appends it. What it decided is in the batch afterwards:
attributes that say whether records are hidden, and due times as numbers.
"""

import re
from typing import Final, NamedTuple

from ottla.errors import InvalidRecord, RecordError
from ottla.model import NO_TIMESTAMP, TimestampMs
from ottla.queues.schedules import InvalidSchedule, Schedule
from ottla.records.batch import (
    HIDES_ALL,
    HIDES_SOME,
    BatchHeader,
    Buffer,
    Record,
    assemble,
    open_payload,
    records,
)
from ottla.records.compression import compress
from ottla.records.hidden_records import (
    CANCEL,
    COMMANDS,
    CRON,
    DELAY,
    DELIVER_AT,
    DUE,
    PREFIX,
    TIMEZONE,
    without,
)
from ottla.records.record_codec import write_record

_NUMBER: Final = re.compile(rb"-?\d{1,19}")
_INT64_MAX: Final = 2**63 - 1
_TIMES: Final = (DELIVER_AT, DELAY, CRON)


class Rules(NamedTuple):
    """The limits by which a batch is judged."""

    now_ms: TimestampMs  # by the clock that says what is due
    delay_max_ms: int
    is_enabled: bool  # False where waiting records are only released
    decompressed_bytes_max: int
    append_time_ms: TimestampMs  # -1 unless the broker's clock gives the records their time


class Judged(NamedTuple):
    """A batch with hidden records as it is to be appended, but for its offset."""

    batch: bytearray
    max_timestamp_ms: int  # of the records that are shown; -1 if there are none
    arm_count: int
    cancels: list[tuple[int, int]]  # index of the record, and the ticket
    is_all_cancels: bool


class _Refused(Exception):
    """A command that cannot be carried out."""


class _Command(NamedTuple):
    due_ms: int | None  # None for a cancel
    ticket: int | None  # None for a record that waits


def judge(batch: Buffer, header: BatchHeader, rules: Rules) -> Judged | None:
    """The batch as it is to be appended; None if it is an ordinary one. Or `InvalidRecord`."""
    payload = open_payload(batch, header, rules.decompressed_bytes_max)
    if PREFIX not in bytes(payload):
        return None
    decoded = list(records(batch, decompressed_bytes_max=rules.decompressed_bytes_max))
    commands = _commands_of(decoded, header, rules)
    hidden = [command for command in commands if command is not None]
    if not hidden:
        return None
    shown_ms = [
        record.timestamp_ms
        for record, command in zip(decoded, commands, strict=True)
        if command is None
    ]
    newest_ms = int(max(shown_ms, default=NO_TIMESTAMP))
    if shown_ms and rules.append_time_ms >= 0:
        newest_ms = rules.append_time_ms
    cancels = [
        (index, command.ticket)
        for index, command in enumerate(commands)
        if command is not None and command.ticket is not None
    ]
    changed = header._replace(
        attributes=header.attributes | (HIDES_SOME if shown_ms else HIDES_ALL),
        max_timestamp_ms=newest_ms,
    )
    if not shown_ms and rules.append_time_ms >= 0:
        # Such a batch has no largest timestamp, in which the time of appending would be.
        changed = changed._replace(base_timestamp_ms=rules.append_time_ms)
        decoded = [_at(record, rules.append_time_ms) for record in decoded]
    rewritten = [
        _rewritten(record, command) for record, command in zip(decoded, commands, strict=True)
    ]
    body = _encode(rewritten, changed)
    return Judged(
        batch=assemble(changed, compress(body, header.codec)),
        max_timestamp_ms=newest_ms,
        arm_count=len(hidden) - len(cancels),
        cancels=cancels,
        is_all_cancels=len(cancels) == len(decoded),
    )


def refuse_cancels(problems: list[tuple[int, str]], count: int) -> InvalidRecord:
    """The refusal of cancels that come too late, or name no ticket."""
    errors = [RecordError(index, text) for index, text in problems]
    return InvalidRecord(
        f"{len(errors)} of {count} records cancel nothing: {errors[0].text}", errors
    )


def _at(record: Record, timestamp_ms: TimestampMs) -> Record:
    return Record(
        offset=record.offset,
        timestamp_ms=timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def _rewritten(record: Record, command: _Command | None) -> Record:
    """The record with the headers that say what was decided, and no others of that kind."""
    if command is None:
        headers = without(record.headers, COMMANDS | {DUE})
    elif command.due_ms is None:
        headers = without(record.headers, {DUE})
    else:
        headers = without(record.headers, {DUE, DELAY})
        if not any(name == DELIVER_AT for name, _ in headers):
            headers = (*headers, (DUE, str(command.due_ms).encode()))
    if headers == record.headers:
        return record
    return Record(
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=headers,
    )


def _encode(rewritten: list[Record], header: BatchHeader) -> bytearray:
    payload = bytearray()
    for record in rewritten:
        write_record(
            payload,
            record.timestamp_ms - header.base_timestamp_ms,
            record.offset - header.base_offset,
            record.key,
            record.value,
            record.headers,
        )
    return payload


def _commands_of(decoded: list[Record], header: BatchHeader, rules: Rules) -> list[_Command | None]:
    commands: list[_Command | None] = []
    problems: list[RecordError] = []
    for index, record in enumerate(decoded):
        try:
            commands.append(_command_of(record, header, rules))
        except _Refused as refused:
            problems.append(RecordError(index, str(refused)))
    if problems:
        raise InvalidRecord(
            f"{len(problems)} of {len(decoded)} records cannot be delayed: {problems[0].text}",
            problems,
        )
    return commands


def _command_of(record: Record, header: BatchHeader, rules: Rules) -> _Command | None:
    """The command of a record; None for one that is shown at once."""
    given = _given(record)
    if not given:
        return None
    if CANCEL in given:
        if len(given) > 1:
            raise _Refused(f"header {CANCEL} goes with no other header of a delay")
        if header.is_transactional:
            raise _Refused("a transaction cannot cancel: send the record outside of it")
        return _Command(None, _number(given, CANCEL))
    if not rules.is_enabled:
        raise _Refused("delay.enable is false: the topic takes no records that wait any more")
    _check_times(given)
    due_ms = _due(given, rules)
    if due_ms - rules.now_ms > rules.delay_max_ms:
        raise _Refused(
            f"due {due_ms - rules.now_ms} ms from now, delay.max.ms is {rules.delay_max_ms}"
        )
    if due_ms <= rules.now_ms:
        return None
    return _Command(due_ms, None)


def _given(record: Record) -> dict[str, bytes | None]:
    """The command headers of a record."""
    given: dict[str, bytes | None] = {}
    for name, value in record.headers:
        if name in COMMANDS:
            if name in given:
                raise _Refused(f"header {name} is there twice")
            given[name] = value
    return given


def _check_times(given: dict[str, bytes | None]) -> None:
    times = [name for name in _TIMES if name in given]
    if len(times) > 1:
        raise _Refused(f"headers {' and '.join(times)} exclude each other")
    if TIMEZONE in given and CRON not in given:
        raise _Refused(f"header {TIMEZONE} needs {CRON}")


def _due(given: dict[str, bytes | None], rules: Rules) -> int:
    if DELIVER_AT in given:
        return _number(given, DELIVER_AT)
    if DELAY in given:
        return int(rules.now_ms) + _number(given, DELAY)
    try:
        return Schedule.read(given[CRON], given.get(TIMEZONE)).next_ms(rules.now_ms)
    except InvalidSchedule as problem:
        raise _Refused(str(problem)) from None


def _number(given: dict[str, bytes | None], name: str) -> int:
    text = given[name]
    if text is None or not _NUMBER.fullmatch(text):
        raise _Refused(f"header {name} must be a whole number as text, not {(text or b'')[:40]!r}")
    number = int(text)
    if not 0 <= number <= _INT64_MAX:
        raise _Refused(f"header {name} = {number} is out of range")
    return number
