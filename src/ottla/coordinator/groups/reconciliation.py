"""Steps of a member from its current assignment to its target; no partition is ever shared.

                     give up some                wait for partitions of others
    STABLE ---------------------------> UNREVOKED -----------------------------> UNRELEASED
      ^  |  nothing to give up              |  nothing to wait for                  |
      +--+----------------------------------+---------------------------------------+

A member stays in its epoch while it gives up partitions, so that it can still commit offsets of
them, and reaches the epoch of its target when it has given up everything that is not in it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

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

    `owned` are the partitions that the member reports in this heartbeat; None if it reports none.
    A partition is free when no other member holds it.
    """
    epoch = current.epoch
    match current.state:
        case MemberState.STABLE:
            if epoch == target_epoch:
                return current
        case MemberState.UNREVOKED:
            if _has_any(owned, current.revoking):
                return current
            epoch += 1  # it may have to give up more at once: that needs an epoch of its own
        case MemberState.UNRELEASED | MemberState.UNKNOWN:
            pass
        case _ as never:
            assert_never(never)
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
    """The epoch before is kept for a member that misses the response and sends it again."""
    if current.epoch == epoch:
        return current
    return replace(current, epoch=epoch, previous_epoch=current.epoch)
