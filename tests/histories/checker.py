"""Judges a history: lost, doubled or reordered records, broken isolation, lost commits.

Everything that clients were told must be true in the end; what they were not told may or may not
have happened, but whole and once.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from histories.history import Fault, Gap, History, Outcome, Sent, Transaction
from histories.shares import judge_shares
from histories.waits import judge_waits
from ottla.model import TopicPartition


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
        *_isolated(history),
        *_gaps(history),
        *_redelivered(history),
        *judge_shares(history),
        *judge_waits(history),
    ]


def gaps(history: History) -> list[Gap]:
    """The times between two acknowledgements of each partition, the longest first."""
    acked: dict[TopicPartition, list[float]] = defaultdict(list)
    for sent in history.sent:
        if sent.outcome is Outcome.DONE and sent.ended_s is not None:
            acked[sent.tp].append(sent.ended_s)
    found = [Gap(tp, *pair) for tp, times in acked.items() for pair in pairwise(sorted(times))]
    return sorted(found, key=lambda gap: -gap.length_s)


def fault_of(history: History, gap: Gap) -> Fault | None:
    """The fault that a gap belongs to: of those that it touches, the one with most of it."""

    def common_s(fault: Fault) -> float:
        return min(fault.ended_s, gap.ended_s) - max(fault.begun_s, gap.begun_s)

    touched = [fault for fault in history.faults if common_s(fault) > 0]
    return max(touched, key=common_s, default=None)


def redelivered_share(history: History) -> float:
    """Of the records that groups' members read, the share that had been read before."""
    times = Counter(
        (read.group, read.tp, offset)
        for read in history.reads
        if read.group
        for offset, _ in read.records
    )
    return 1 - len(times) / times.total() if times else 0.0


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
    offsets = {False: _sorted_offsets(final), True: _sorted_offsets(committed)}
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
        known = offsets[read.is_committed].get(read.tp, [])
        between = known[bisect_right(known, before) : bisect_left(known, last)]
        for offset in sorted(set(between) - set(seen)):
            yield f"{read.reader} skipped {there[offset]} of {read.tp} at {offset}"
        ends[key] = last


def _sorted_offsets(logs: dict[TopicPartition, dict[int, str]]) -> dict[TopicPartition, list[int]]:
    return {tp: sorted(records) for tp, records in logs.items()}


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
    done: dict[str, list[tuple[float, int]]] = defaultdict(list)
    unknown: dict[str, set[int]] = defaultdict(set)
    for one in history.written:
        if one.ended_s is None:
            unknown[one.group].add(one.offset)
        else:
            done[one.group].append((one.ended_s, one.offset))
    ended = {group: sorted(written) for group, written in done.items()}
    newest = {
        group: list(accumulate((offset for _, offset in written), max))
        for group, written in ended.items()
    }
    for seen in history.seen:
        count = bisect_left(ended.get(seen.group, []), (seen.begun_s,))
        if not count or seen.offset in unknown[seen.group]:
            continue
        stored = newest[seen.group][count - 1]
        if seen.offset is None or seen.offset < stored:
            yield f"outdated: offset {seen.offset} of {seen.group}, {stored} was stored before"


def _isolated(history: History) -> Iterator[str]:
    """Nothing that was sent to an isolated broker is acknowledged while it is isolated."""
    acked = [
        sent for sent in history.sent if sent.broker is not None and sent.outcome is Outcome.DONE
    ]
    for isolation in history.isolations:
        for sent in acked:
            assert sent.begun_s is not None, sent
            assert sent.ended_s is not None, sent
            is_meanwhile = isolation.begun_s < sent.begun_s and sent.ended_s < isolation.ended_s
            if sent.broker == isolation.broker and is_meanwhile:
                yield (
                    f"acknowledged by an isolated leader: {sent.value} of {sent.tp}"
                    f" by broker {isolation.broker}"
                )


def _gaps(history: History) -> Iterator[str]:
    if history.calm_gap_s_max is None:
        return
    shortest_s = min([history.calm_gap_s_max, *(fault.gap_s_max for fault in history.faults)])
    for gap in gaps(history):
        if gap.length_s <= shortest_s:
            return
        fault = fault_of(history, gap)
        allowed = history.calm_gap_s_max if fault is None else fault.gap_s_max
        if gap.length_s > allowed:
            yield (
                f"silent: {gap.tp} acknowledged nothing for {gap.length_s:.1f} s"
                f" from {gap.begun_s:.1f} s on, {allowed:g} s at most"
            )


def _redelivered(history: History) -> Iterator[str]:
    share = redelivered_share(history)
    if history.redelivered_max is not None and share > history.redelivered_max:
        yield f"redelivered: {share:.2%} of the records, {history.redelivered_max:.2%} at most"


def _places(history: History) -> dict[TopicPartition, dict[str, list[int]]]:
    """The offsets of each value of each partition."""
    places: dict[TopicPartition, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for tp, records in history.final.items():
        for offset, value in records:
            places[tp][value].append(offset)
    return places
