"""Changing the cluster for a client: one commit for many wishes, each with its own answer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ottla.cluster import controller
from ottla.cluster.controller import Decision
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.errors import ApiError
from ottla.replication.replicas import Replicas

Answer = TypeVar("Answer")
Decide = Callable[[ClusterImage], Decision[Answer]]


class Commits:
    """Answers a client once this broker serves what was decided."""

    def __init__(self, state: ClusterState, replicas: Replicas) -> None:
        self._state = state
        self._replicas = replicas

    async def each(
        self, decides: Sequence[Decide[Answer]], *, validate_only: bool = False
    ) -> Sequence[Answer | ApiError]:
        """Make every wish true that can be; the answers are in their order.

        With `validate_only` nothing changes and the answers are what they would be. When the
        store itself cannot take the commit, that is everybody's answer.
        """
        if validate_only:
            return controller.decide_each(self._state.image, decides).answer
        try:
            answers = await self._state.commit(partial(controller.decide_each, decides=decides))
            await self._replicas.wait_applied(self._state.image.revision)
        except ApiError as refused:
            return [refused for _ in decides]
        return answers
