"""Topics with logs that could not be made, and why: they are tried again."""

import logging

from ottla.errors import StorageFailed

log = logging.getLogger("ottla.replication")


class UnfinishedTopics(dict[str, StorageFailed]):
    """The reason of the last try, by topic."""

    def note(self, topic: str, problem: StorageFailed | None) -> None:
        """All logs of a topic are there, or not because of `problem`: said once, not every time."""
        if problem is None:
            self.pop(topic, None)
            return
        if str(problem) != str(self.get(topic)):
            log.error("log creation failed", extra={"topic": topic, "reason": problem})
        self[topic] = problem
