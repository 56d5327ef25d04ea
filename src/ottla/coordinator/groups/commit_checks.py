"""Checks of clients that commit or fetch offsets: whether their group lets them."""

from typing import Final, NamedTuple, assert_never

from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.consumer_group import ConsumerGroup
from ottla.coordinator.groups.consumer_records import MemberStored
from ottla.errors import ErrorCode

_MEMBER_EPOCHS_FROM: Final = 9  # OffsetCommit: older versions cannot send a member epoch
_GROUP_NOT_FOUND_FROM: Final = 9  # OffsetCommit: older clients know only a wrong generation


class Committer(NamedTuple):
    """A client that commits offsets: a member of a generation, or a consumer without a group."""

    member_id: str
    instance_id: str | None
    generation: int  # or the epoch of a member of a consumer group
    version: int  # of OffsetCommit


def check_commit(group: ClassicGroup | ConsumerGroup | None, committer: Committer) -> ErrorCode:
    """The error of an OffsetCommit: members may commit, and anyone while a group has none."""
    match group:
        case ClassicGroup():
            return _check_classic_commit(group, committer)
        case ConsumerGroup():
            return _check_consumer_commit(group, committer)
        case None if committer.generation < 0:
            return ErrorCode.NONE  # it assigns partitions itself and only keeps offsets here
        case None if committer.version >= _GROUP_NOT_FOUND_FROM:
            return ErrorCode.GROUP_ID_NOT_FOUND
        case _:
            return ErrorCode.ILLEGAL_GENERATION


def _check_classic_commit(group: ClassicGroup, committer: Committer) -> ErrorCode:
    if committer.generation < 0 and group.state is State.EMPTY:
        return ErrorCode.NONE
    error = group.check_member(committer.member_id, committer.instance_id, committer.generation)
    if error is ErrorCode.NONE and group.state is State.COMPLETING:
        return ErrorCode.REBALANCE_IN_PROGRESS  # it has to fetch its assignment first
    return error


def _check_consumer_commit(group: ConsumerGroup, committer: Committer) -> ErrorCode:
    if committer.generation < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(committer.member_id)
    if member is not None and member.classic is None and (committer.version < _MEMBER_EPOCHS_FROM):
        return ErrorCode.UNSUPPORTED_VERSION
    return _check_epoch(group, member, committer.generation)


def check_transactional_commit(
    group: ClassicGroup | ConsumerGroup | None, committer: Committer
) -> ErrorCode:
    """The error of a TxnOffsetCommit, whose transaction coordinator fences as well.

    Before version 3 a producer cannot say for which member it commits (KIP-447).
    """
    is_anonymous = not committer.member_id and committer.instance_id is None
    may_be_anonymous = group is None or is_anonymous or _is_empty(group)
    if committer.generation < 0 and may_be_anonymous:
        return ErrorCode.NONE
    match group:
        case None:
            return ErrorCode.ILLEGAL_GENERATION
        case ClassicGroup():
            return group.check_member(
                committer.member_id, committer.instance_id, committer.generation
            )
        case ConsumerGroup():
            member = group.members.get(committer.member_id)
            return _check_epoch(group, member, committer.generation)
        case _ as never:
            assert_never(never)


def check_fetch(
    group: ClassicGroup | ConsumerGroup | None, member_id: str | None, epoch: int
) -> ErrorCode:
    """The error of an OffsetFetch that claims to come from a member of a consumer group."""
    if not isinstance(group, ConsumerGroup) or (not member_id and epoch < 0):
        return ErrorCode.NONE
    return _check_epoch(group, group.members.get(member_id or ""), epoch)


def _is_empty(group: ClassicGroup | ConsumerGroup) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is State.EMPTY


def _check_epoch(group: ConsumerGroup, member: MemberStored | None, epoch: int) -> ErrorCode:
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == group.replayed.current(member.member_id).epoch:
        return ErrorCode.NONE
    is_classic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
