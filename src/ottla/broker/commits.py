"""Changing the cluster for a client: a few commits for many wishes, each with its own answer."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from ottla.cluster import controller
from ottla.cluster.controller import Decision
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.errors import ApiError
from ottla.replication.replicas import Replicas

Answer = TypeVar("Answer")
Decide = Callable[[ClusterImage], Decision[Answer]]

# Wishes that are decided in one turn of the loop and written by one commit: few enough that
# nobody waits long for either, and that the commit fits into etcd's default limits.
WISHES_PER_COMMIT: Final = 30


class Commits:
    """Answers a client once this broker serves what was decided."""

    def __init__(self, state: ClusterState, replicas: Replicas) -> None:
        self._state = state
        self._replicas = replicas

    async def each(
        self, decides: Sequence[Decide[Answer]], *, validate_only: bool = False
    ) -> Sequence[Answer | ApiError]:
        """Make every wish true that can be; the answers are in their order.

        With `validate_only` nothing changes and the answers are what they would be, each wish by
        itself. When the store cannot take a commit, that is the answer to all wishes in it.
        """
        answers: list[Answer | ApiError] = []
        for first in range(0, len(decides), WISHES_PER_COMMIT):
            some = decides[first : first + WISHES_PER_COMMIT]
            if validate_only:
                answers += controller.decide_each(self._state.image, some).answer
                await asyncio.sleep(0)
            else:
                made = await self._commit(some)
                answers += made
        return answers

    async def _commit(self, decides: Sequence[Decide[Answer]]) -> Sequence[Answer | ApiError]:
        try:
            answers = await self._state.commit(partial(controller.decide_each, decides=decides))
            await self._replicas.wait_applied(self._state.image.revision)
        except ApiError as refused:
            return [refused for _ in decides]
        return answers
