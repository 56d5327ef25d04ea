"""What clients did, and what came of it: the input of the checker.

The same history is made by simulated clients and by real ones against brokers in processes of their
own. Times are those of one monotonic clock; a history without times is not judged by them.
"""

from dataclasses import dataclass, field
from enum import Enum

from ottla.model import TopicPartition


class Outcome(Enum):
    """What a client knows about something that it asked for."""

    DONE = "done"
    REFUSED = "refused"  # it has certainly not happened
    UNKNOWN = "unknown"  # it may have happened, and may still happen


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that a producer sent. `number` counts its records of this partition."""

    producer: str
    tp: TopicPartition
    number: int
    outcome: Outcome
    offset: int | None = None  # if the broker said so
    transaction: str | None = None
    begun_s: float | None = None
    ended_s: float | None = None  # when it was acknowledged
    broker: int | None = None  # that was asked, if the client chose it
    sent_to: TopicPartition | None = None  # the partition it was sent to, if it is in another

    @property
    def value(self) -> str:
        return value_of(self.producer, self.number)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that a producer began, and how it ended."""

    id: str
    is_commit: bool  # or an abort
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that a member of a group committed."""

    group: str
    tp: TopicPartition
    offset: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Read:
    """Records that a reader got in one piece, in their order: offsets and values."""

    reader: str
    tp: TopicPartition
    records: tuple[tuple[int, str], ...]
    is_committed: bool = False  # read with isolation read_committed
    session: int = 0  # a group's assignment: within it nothing is read twice
    group: str = ""  # that the reader is a member of


@dataclass(frozen=True, slots=True)
class Written:
    """An offset that a program stored for itself: always a higher one, one after the other."""

    group: str
    offset: int
    ended_s: float | None  # when it was told so; None if it does not know


@dataclass(frozen=True, slots=True)
class Seen:
    """The offset that a reader of such a group was told; None for no offset."""

    group: str
    offset: int | None
    begun_s: float


@dataclass(frozen=True, slots=True)
class Delivered:
    """A record that a member of a share group acquired, and from the leader of its partition."""

    member: str
    tp: TopicPartition
    offset: int
    value: str
    count: int  # deliveries of it, this one included
    at_s: float
    is_by_leader: bool  # False if another broker led by then: its acknowledgement is refused


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledgement that was answered: it has its effect."""

    member: str
    tp: TopicPartition
    offset: int
    value: str
    kind: str  # accept, release or reject
    at_s: float


@dataclass(slots=True)
class Shares:
    """Everything that members of one share group did, and what became of its records."""

    delivered: list[Delivered] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    count_max: int = 5
    dead: list[str] = field(default_factory=list)  # values of dead letters
    unfinished: str = ""  # what was not finished in the end


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A record that was sent to be delivered later; the due time of an ordinary one is 0."""

    value: str
    tp: TopicPartition
    due_ms: int  # it must not be delivered earlier
    is_exact: bool  # whether that is its due time; else it is due some time after
    outcome: Outcome
    ticket: int | None = None
    acked_ms: int | None = None
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class Recurring:
    """A record that was sent to be delivered again and again, from `sent_ms` on."""

    value: str
    tp: TopicPartition
    due_ms: tuple[int, ...]  # all times, ascending, up to the end of the history and behind it
    sent_ms: int
    outcome: Outcome
    ticket: int | None = None  # the first, which names the schedule
    acked_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """The cancellation of a record that comes again."""

    begun_ms: int
    outcome: Outcome
    offset: int | None  # of the record that cancels, if the broker said so


@dataclass(frozen=True, slots=True)
class Released:
    """A record that a reader of such a topic finds: without a ticket it did not wait."""

    tp: TopicPartition
    offset: int
    value: str
    at_ms: int
    ticket: int | None
    schedule: int | None = None  # the first ticket of one that comes again


@dataclass(slots=True)
class Waits:
    """Everything that was sent to be delivered later, and what was delivered."""

    scheduled: list[Scheduled] = field(default_factory=list)
    cancels: dict[str, Outcome] = field(default_factory=dict)  # by value
    released: list[Released] = field(default_factory=list)
    recurring: list[Recurring] = field(default_factory=list)
    removals: dict[str, Removal] = field(default_factory=dict)  # by value
    end_ms: int | None = None  # when everything that comes again was about to be cancelled
    ended_ms: int | None = None  # when that was acknowledged
    unfinished: str = ""  # what still waited in the end


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, from its beginning until all replicas are in sync again."""

    name: str
    begun_s: float
    ended_s: float
    gap_s_max: float  # for which a partition may acknowledge nothing


@dataclass(frozen=True, slots=True)
class Isolation:
    """A broker that had no connection to any other one: clients may reach it, and are refused."""

    broker: int
    begun_s: float  # nothing passes from here on
    ended_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """A time for which a partition acknowledged nothing, though producers wrote to it."""

    tp: TopicPartition
    begun_s: float
    ended_s: float

    @property
    def length_s(self) -> float:
        return self.ended_s - self.begun_s


@dataclass(slots=True)
class History:
    """Everything that happened, in order, and the logs as they are in the end."""

    sent: list[Sent] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    final: dict[TopicPartition, list[tuple[int, str]]] = field(default_factory=dict)
    final_committed: dict[TopicPartition, list[tuple[int, str]]] = field(default_factory=dict)
    final_offsets: dict[tuple[str, TopicPartition], int | None] = field(default_factory=dict)
    unavailable: list[TopicPartition] = field(default_factory=list)  # when all faults were over
    resized: tuple[str, ...] = ()  # topics of which partitions were sealed and opened
    shares: Shares | None = None
    waits: Waits | None = None
    unread: str = ""  # why the logs could not be read in the end
    faults: list[Fault] = field(default_factory=list)
    isolations: list[Isolation] = field(default_factory=list)
    calm_gap_s_max: float | None = None  # the limit for gaps outside of faults; None judges none
    redelivered_max: float | None = None  # of the records that groups read: the share read again


def value_of(producer: str, number: int) -> str:
    return f"{producer}#{number}"
