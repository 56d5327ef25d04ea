"""Judges a history: lost, doubled or reordered records, broken isolation, lost commits.

Everything that clients were told must be true in the end; what they were not told may or may not
have happened, but whole and once.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from ottla.model import TopicPartition
from sim.history import History, Outcome, Sent, Transaction


def judge(history: History) -> list[str]:
    """Everything that is wrong, a sentence each; empty if nothing is."""
    if history.unread:
        return [*_availability(history), f"the logs cannot be read: {history.unread}"]
    doubled = list(_relocate(history))
    return [
        *_availability(history),
        *doubled,
        *_loss(history),
        *_duplicates(history),
        *_order(history),
        *_reads(history),
        *_transactions(history),
        *_commits(history),
        *_outdated(history),
    ]


def _availability(history: History) -> Iterator[str]:
    for tp in history.unavailable:
        yield f"{tp} does not acknowledge after all faults are over"


def _relocate(history: History) -> Iterator[str]:
    """Note where records are that were sent to partitions which may have been sealed."""
    found: dict[tuple[str, str], list[TopicPartition]] = defaultdict(list)
    for tp, records in history.final.items():
        if tp.topic in history.resized:
            for _, value in records:
                found[tp.topic, value].append(tp)
    for at, sent in enumerate(history.sent):
        tps = dict.fromkeys(found.get((sent.tp.topic, sent.value), ()))
        if len(tps) > 1:
            yield f"doubled: {sent.value} of {sent.tp} is in {', '.join(map(str, tps))}"
        elif tps and sent.tp not in tps:
            history.sent[at] = replace(sent, tp=next(iter(tps)), sent_to=sent.tp)


def _loss(history: History) -> Iterator[str]:
    """Acknowledged records are there, at the offset that was said; refused ones are not."""
    places = _places(history)
    ended = {t.id for t in history.transactions}
    for sent in history.sent:
        found = places[sent.tp].get(sent.value, [])
        if sent.outcome is Outcome.DONE and not found:
            if sent.transaction is not None and sent.transaction not in ended:
                continue  # the producer died with it: it may be gone with the batch before
            yield f"lost: {sent.value} of {sent.tp}, acknowledged at offset {sent.offset}"
        elif sent.outcome is Outcome.DONE and sent.offset not in {None, *found}:
            yield f"moved: {sent.value} of {sent.tp}, acknowledged at {sent.offset}, is at {found}"
        elif sent.outcome is Outcome.REFUSED and found:
            yield f"refused and written: {sent.value} of {sent.tp} at {found}"


def _duplicates(history: History) -> Iterator[str]:
    for tp, values in _places(history).items():
        for value, offsets in values.items():
            if len(offsets) > 1:
                yield f"doubled: {value} of {tp} at {offsets}"
    known = {(sent.tp, sent.value) for sent in history.sent}
    for tp, records in history.final.items():
        for offset, value in records:
            if (tp, value) not in known:
                yield f"invented: {value!r} of {tp} at {offset}"


def _order(history: History) -> Iterator[str]:
    """The records of a producer are in a partition in the order in which it sent them."""
    numbers = {(sent.tp, sent.value): sent for sent in history.sent}
    for tp, records in history.final.items():
        last: dict[tuple[str, TopicPartition], Sent] = {}
        before = -1
        for offset, value in records:
            if offset <= before:
                yield f"offsets of {tp} go from {before} to {offset}"
            before = offset
            sent = numbers.get((tp, value))
            if sent is None:
                continue
            key = (sent.producer, sent.sent_to or sent.tp)
            previous = last.get(key)
            if previous is not None and previous.number > sent.number:
                yield f"reordered: {value} of {tp} at {offset}, behind {previous.value}"
            last[key] = sent


def _reads(history: History) -> Iterator[str]:
    """What a reader saw is what is there in the end, in order, and without gaps."""
    final = {tp: dict(records) for tp, records in history.final.items()}
    committed = {tp: dict(records) for tp, records in history.final_committed.items()}
    ends: dict[tuple[str, int, TopicPartition], int] = {}
    for read in history.reads:
        there = (committed if read.is_committed else final).get(read.tp, {})
        key = (read.reader, read.session, read.tp)
        first, last = read.records[0][0], read.records[-1][0]
        before = ends.get(key, first - 1)
        seen = [offset for offset, _ in read.records]
        if first <= before or seen != sorted(set(seen)):
            yield f"{read.reader} read {read.tp} at {seen} behind {before}"
        for offset, value in read.records:
            if there.get(offset) != value:
                yield (
                    f"{read.reader} read {value} of {read.tp} at {offset},"
                    f" where in the end is {there.get(offset)}"
                )
        for offset in sorted(there.keys() - set(seen)):
            if before < offset < last:
                yield f"{read.reader} skipped {there[offset]} of {read.tp} at {offset}"
        ends[key] = last


def _transactions(history: History) -> Iterator[str]:
    """A committed transaction is visible as a whole, an aborted one not at all."""
    visible = {
        (tp, value) for tp, records in history.final_committed.items() for _, value in records
    }
    members: dict[str, list[Sent]] = defaultdict(list)
    for sent in history.sent:
        if sent.transaction is not None:
            members[sent.transaction].append(sent)
    for transaction in history.transactions:
        all_sent = members.pop(transaction.id, [])
        seen = [one for one in all_sent if (one.tp, one.value) in visible]
        yield from _transaction(transaction, all_sent, seen)
    for never_ended in members.values():
        for one in never_ended:
            if (one.tp, one.value) in visible:
                yield f"never ended and visible: {one.value} of {one.tp}"


def _transaction(transaction: Transaction, all_sent: list[Sent], seen: list[Sent]) -> Iterator[str]:
    sent = [one for one in all_sent if one.outcome is Outcome.DONE]
    if transaction.outcome is not Outcome.DONE:
        if seen and len(seen) < len(sent):
            yield f"torn: {len(seen)} of {len(sent)} records of {transaction.id} are visible"
    elif transaction.is_commit:
        for one in sent:
            if one not in seen:
                yield f"committed and not visible: {one.value} of {one.tp}"
    else:
        for one in seen:
            yield f"aborted and visible: {one.value} of {one.tp}"


def _commits(history: History) -> Iterator[str]:
    """The offset of a group is the last one that was committed, or one that may have been."""
    by_key: dict[tuple[str, TopicPartition], list[tuple[int, Outcome]]] = defaultdict(list)
    for commit in history.commits:
        by_key[commit.group, commit.tp].append((commit.offset, commit.outcome))
    for key, found in history.final_offsets.items():
        commits = by_key[key]
        done = [i for i, (_, outcome) in enumerate(commits) if outcome is Outcome.DONE]
        last = done[-1] if done else -1
        possible = {offset for offset, outcome in commits if outcome is Outcome.UNKNOWN}
        possible.update(offset for offset, _ in commits[last : last + 1] if last >= 0)
        group, tp = key
        if found is None:
            if done:
                yield f"lost: the offset {commits[last][0]} of group {group} in {tp}"
        elif found not in possible:
            yield f"offset {found} of group {group} in {tp} is none of {sorted(possible)}"


def _outdated(history: History) -> Iterator[str]:
    """A coordinator says nothing that was replaced before it was asked.

    A write whose outcome its program does not know may be applied at any time, also behind later
    ones.
    """
    for seen in history.seen:
        of_group = [one for one in history.written if one.group == seen.group]
        before = [
            one.offset for one in of_group if one.ended_s is not None and one.ended_s < seen.begun_s
        ]
        unknown = {one.offset for one in of_group if one.ended_s is None}
        newest = max(before, default=None)
        if newest is None or seen.offset in unknown:
            continue
        if seen.offset is None or seen.offset < newest:
            yield f"outdated: offset {seen.offset} of {seen.group}, {newest} was stored before"


def _places(history: History) -> dict[TopicPartition, dict[str, list[int]]]:
    """The offsets of each value of each partition."""
    places: dict[TopicPartition, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for tp, records in history.final.items():
        for offset, value in records:
            places[tp][value].append(offset)
    return places
