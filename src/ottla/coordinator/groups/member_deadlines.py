"""Deadlines of a consumer group's members: who does not act in time is removed.

Deadlines are not written to the log: a coordinator that replays gives every member its whole time.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class MemberDeadlines:
    """Owned by a consumer group. Each field maps member ids to times in milliseconds."""

    session: dict[str, int] = field(default_factory=dict)  # for the next heartbeat
    revocation: dict[str, int] = field(default_factory=dict)  # for reporting without a partition
    rejoin: dict[str, int] = field(default_factory=dict)  # for joining again; classic members only
    sync: dict[str, int] = field(default_factory=dict)  # for syncing; classic members only

    def forget(self, member_id: str) -> None:
        for deadlines in self._all():
            deadlines.pop(member_id, None)

    def passed(self, now_ms: int) -> list[str]:
        """Members that have missed a deadline, each once."""
        return list(
            dict.fromkeys(
                member_id
                for deadlines in self._all()
                for member_id, end_ms in deadlines.items()
                if end_ms <= now_ms
            )
        )

    def next_ms(self) -> int | None:
        """The first deadline of any member."""
        return min((min(ends.values()) for ends in self._all() if ends), default=None)

    def _all(self) -> tuple[dict[str, int], ...]:
        return self.session, self.revocation, self.rejoin, self.sync
