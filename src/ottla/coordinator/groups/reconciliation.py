"""How a member gets from what it has to what it is to have, without ever sharing a partition.

                      let go of some              wait for what others still hold
    STABLE ---------------------------> UNREVOKED -----------------------------> UNRELEASED
      ^  |  nothing to let go of            |  nothing to wait for                  |
      +--+----------------------------------+---------------------------------------+

A member stays in its epoch while it lets go, so that it can still commit what it has read, and
reaches the epoch of its target when it has let go of everything that is not in it.
"""

from collections.abc import Callable
from dataclasses import replace

from ottla.coordinator.groups.consumer_records import CurrentSet, MemberState
from ottla.coordinator.groups.topics import NOTHING, IdPartition, Partitions


def advance(
    current: CurrentSet,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[IdPartition], bool],
) -> CurrentSet:
    """The next step, or `current` when there is none to take.

    `owned` is what the member said in this heartbeat that it has; None if it said nothing. A
    partition is free when nobody but this member has it.
    """
    epoch = current.epoch
    match current.state:
        case MemberState.STABLE:
            if epoch == target_epoch:
                return current
        case MemberState.UNREVOKED:
            if _has_any(owned, current.revoking):
                return current
            epoch += 1  # it may have to let go of more at once, and that is a new promise
        case MemberState.UNRELEASED | MemberState.UNKNOWN:
            pass
    kept = current.assigned & target
    leaving = current.assigned - kept
    if leaving and _has_any(owned, leaving):
        return _in_epoch(
            replace(current, state=MemberState.UNREVOKED, assigned=kept, revoking=leaving), epoch
        )
    missing = target - kept
    coming = frozenset(filter(is_free, missing))
    is_complete = len(coming) == len(missing)
    return _in_epoch(
        replace(
            current,
            state=MemberState.STABLE if is_complete else MemberState.UNRELEASED,
            assigned=kept | coming,
            revoking=NOTHING,
        ),
        target_epoch,
    )


def _has_any(owned: Partitions | None, partitions: Partitions) -> bool:
    return owned is None or not owned.isdisjoint(partitions)


def _in_epoch(current: CurrentSet, epoch: int) -> CurrentSet:
    """Whoever did not get the answer comes again with the epoch before."""
    if current.epoch == epoch:
        return current
    return replace(current, epoch=epoch, previous_epoch=current.epoch)
