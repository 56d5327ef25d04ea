"""States of share partitions that other brokers coordinate, with Kafka's requests 83 to 87.

One round of requests is under way to a broker at a time; calls that come meanwhile share the next,
and writes to one state become one. A call that was not answered may arrive later still, when its
sender has read the state again: rounds are numbered, and name the coordinators' epochs, so that a
late copy changes nothing.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final

from ottla.coordinator.share.state_calls import StateResult, Write, merged
from ottla.coordinator.share.state_messages import Addressed, request_of, results_of
from ottla.errors import ApiError, NotCoordinator
from ottla.model import BrokerId, Uuid
from ottla.queues.share_state import SharePartitionKey
from ottla.replication.peers import PeerBatches, Peers

_CALLS_MAX: Final = 1000  # of one round
_RESPONSE_S: Final = 10.0  # more than a coordinator lets a commit take
_LANE: Final = "share states"


class PeerShareStates:
    """Sends calls to the coordinators of other brokers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._sequence = itertools.count(1)
        keys = itertools.count()
        self._batches: PeerBatches[Addressed, StateResult] = PeerBatches(
            peers, self._exchange, items_max=_CALLS_MAX, key=lambda _: next(keys)
        )

    def begin(self, peer: BrokerId, addressed: Addressed) -> "asyncio.Future[StateResult]":
        """The result of a call when it is there; an ApiError if the peer did not decide it."""
        return self._batches.begin(peer, addressed)

    async def _exchange(
        self, peer: BrokerId, items: Sequence[Addressed]
    ) -> Sequence[StateResult | ApiError]:
        registration = self._peers.registration
        if registration is None:
            return [NotCoordinator("this broker is not registered")] * len(items)
        token, sequence = Uuid(registration.token), next(self._sequence)
        calls, positions = _together(items)
        parts = _parts(calls)
        responses = await self._peers.send_all(
            peer,
            [request_of(part, token, sequence) for part in parts],
            timeout_s=_RESPONSE_S,
            lane=_LANE,
        )
        missing = NotCoordinator(f"broker {peer} did not respond about the state")
        results: list[StateResult] = []
        for part, response in zip(parts, responses, strict=True):
            found = results_of(part[0].call.key.group_id, response)
            results += [found.get(one.call.key, missing) for one in part]
        return [results[position] for position in positions]


def _together(items: Sequence[Addressed]) -> tuple[list[Addressed], list[int]]:
    """The calls to send, in their order, and for each item the position of its call.

    A write is merged with the one before it to the same state.
    """
    calls: list[Addressed] = []
    positions: list[int] = []
    last: dict[SharePartitionKey, int] = {}  # position of the newest call of each key
    for item in items:
        call, key = item.call, item.call.key
        position = last.get(key)
        if position is not None and isinstance(call, Write):
            known = calls[position].call
            both = merged(known, call) if isinstance(known, Write) else None
            if both is not None:
                calls[position] = Addressed(both, item.coordinator_epoch)
                positions.append(position)
                continue
        last[key] = len(calls)
        positions.append(len(calls))
        calls.append(item)
    return calls, positions


def _parts(calls: Sequence[Addressed]) -> list[list[Addressed]]:
    """Calls of each request, in their order: of one kind and group, and one for each key."""
    parts: list[list[Addressed]] = []
    kind: tuple[object, str] | None = None
    keys: set[SharePartitionKey] = set()
    for item in calls:
        call = item.call
        of_call = (type(call), call.key.group_id)
        if of_call != kind or call.key in keys:
            parts.append([])
            kind, keys = of_call, set()
        keys.add(call.key)
        parts[-1].append(item)
    return parts
