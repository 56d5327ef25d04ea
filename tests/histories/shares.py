"""Judges what members of a share group were given, and told about their acknowledgements."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from histories.history import Acknowledged, Delivered, History, Outcome, Shares
from ottla.model import TopicPartition

_FINAL = ("accept", "reject")


def judge_shares(history: History) -> Iterator[str]:
    """Everything that is wrong with the share group, a sentence each."""
    shares = history.shares
    if shares is None:
        return
    if shares.unfinished:
        yield f"unfinished: {shares.unfinished}"
    yield from _deliveries(shares)
    yield from _losses(history, shares)
    yield from _dead_letters(shares)


def _deliveries(shares: Shares) -> Iterator[str]:
    """A record is given to no one after it was finished; none is finished twice."""
    events: list[Delivered | Acknowledged] = sorted(
        chain(shares.delivered, shares.acknowledged), key=lambda one: one.at_s
    )
    finished: dict[tuple[TopicPartition, int], Acknowledged] = {}
    for one in events:
        key = one.tp, one.offset
        known = finished.get(key)
        if isinstance(one, Delivered):
            if one.count > shares.count_max:
                yield f"delivered too often: {one}"
            if known is not None and one.is_by_leader:
                yield f"delivered after its end: {one} after {known}"
        elif one.kind in _FINAL:
            if known is not None:
                yield f"finished twice: {one} after {known}"
            finished[key] = one


def _losses(history: History, shares: Shares) -> Iterator[str]:
    """Every record that was acknowledged to its producer is delivered."""
    delivered = {one.value for one in shares.delivered}
    for sent in history.sent:
        if sent.outcome is Outcome.DONE and sent.value not in delivered:
            yield f"never delivered: {sent}"


def _dead_letters(shares: Shares) -> Iterator[str]:
    """A rejected record has one dead letter, an accepted one has none."""
    dead = Counter(shares.dead)
    for value, count in dead.items():
        if count > 1:
            yield f"{count} dead letters: {value}"
    for one in shares.acknowledged:
        if one.kind == "reject" and not dead[one.value]:
            yield f"no dead letter: {one}"
        if one.kind == "accept" and dead[one.value]:
            yield f"accepted, and dead: {one}"
