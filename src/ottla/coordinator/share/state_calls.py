"""The five calls on the state of a share partition, as values that any broker can decide."""

from typing import Any, NamedTuple

from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.share.share_states import ShareDecision, ShareStates
from ottla.errors import ApiError
from ottla.model import Offset
from ottla.queues.share_state import SharePartitionKey, StateRead, StateSummary, StateWrite


class Initialize(NamedTuple):
    """Begin a state, or begin it anew in a higher state epoch."""

    key: SharePartitionKey
    state_epoch: int
    start_offset: Offset

    def decide(self, states: ShareStates, ticket: Ticket[Any], now_ms: int) -> ShareDecision:
        return states.initialize(ticket, self.key, self.state_epoch, self.start_offset, now_ms)


class Read(NamedTuple):
    """Read a state as the leader of an epoch: leaders of older ones can write no more."""

    key: SharePartitionKey
    leader_epoch: int

    def decide(self, states: ShareStates, ticket: Ticket[Any], now_ms: int) -> ShareDecision:
        return states.read(ticket, self.key, self.leader_epoch, now_ms)


class Write(NamedTuple):
    """Change a state."""

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    change: StateWrite

    def decide(self, states: ShareStates, ticket: Ticket[Any], now_ms: int) -> ShareDecision:
        return states.write(ticket, *self, now_ms)


class Delete(NamedTuple):
    """Forget a state."""

    key: SharePartitionKey

    def decide(self, states: ShareStates, ticket: Ticket[Any], now_ms: int) -> ShareDecision:
        return states.delete(ticket, self.key, now_ms)


class Summarize(NamedTuple):
    """Read a state without its records, and without becoming its leader."""

    key: SharePartitionKey

    def decide(self, states: ShareStates, ticket: Ticket[Any], now_ms: int) -> ShareDecision:
        return states.summarize(ticket, self.key)


StateCall = Initialize | Read | Write | Delete | Summarize
StateResult = StateRead | StateSummary | ApiError | None  # None if it was done


def merged(first: Write, second: Write) -> Write | None:
    """Both writes as one, if the same leader sends them; None if not."""
    if first[:3] != second[:3]:
        return None
    before, change = first.change, second.change
    together = change._replace(
        batches=before.batches + change.batches, sender=change.sender or before.sender
    )
    return second._replace(change=together)
