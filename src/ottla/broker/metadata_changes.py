"""Changing the cluster for a client: a few commits for many wishes, each with its own answer."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Final, TypeVar

from ottla.cluster.controller.decision import Decision, decide_each
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.errors import ApiError
from ottla.replication.replicas import Replicas

Answer = TypeVar("Answer")
Decide = Callable[[ClusterImage], Decision[Answer]]

# Wishes that are decided in one turn of the loop and written by one commit: few enough that
# nobody waits long for either, and that the commit fits into etcd's default limits.
WISHES_PER_COMMIT: Final = 30
_ELEMENTS_PER_COMMIT: Final = 2000  # of all wishes in it, as far as they have any


class Commits:
    """Answers a client once this broker serves what was decided."""

    def __init__(self, state: ClusterState, replicas: Replicas) -> None:
        self._state = state
        self._replicas = replicas

    async def each(
        self,
        decides: Iterable[Decide[Answer]],
        *,
        sizes: Iterable[int] | None = None,
        validate_only: bool = False,
    ) -> Sequence[Answer | ApiError]:
        """Make every wish true that can be; the answers are in their order.

        `sizes` says how many elements each wish has, if that can be many: replicas, settings. Both
        are read as far as the next commit, so that many wishes need not be made at once.
        With `validate_only` nothing changes and the answers are what they would be, each wish by
        itself. When the store cannot take a commit, that is the answer to all wishes in it.
        """
        answers: list[Answer | ApiError] = []
        for number, some in enumerate(_together(decides, sizes)):
            if number:
                await asyncio.sleep(0)  # wishes that are all refused wait for nothing
            if validate_only:
                answers += decide_each(self._state.image, some).result
            else:
                made = await self._commit(some)
                answers += made
        return answers

    async def _commit(self, decides: Sequence[Decide[Answer]]) -> Sequence[Answer | ApiError]:
        try:
            answers = await self._state.commit(partial(decide_each, decides=decides))
            await self._replicas.wait_applied(self._state.image.revision)
        except ApiError as refused:
            return [refused for _ in decides]
        return answers


def _together(
    decides: Iterable[Decide[Answer]], sizes: Iterable[int] | None
) -> Iterator[list[Decide[Answer]]]:
    """The wishes of one commit each; a wish that is too large has one of its own."""
    some: list[Decide[Answer]] = []
    elements = 0
    for decide, size in zip(decides, repeat(0) if sizes is None else sizes, strict=False):
        if some and (len(some) >= WISHES_PER_COMMIT or elements + size > _ELEMENTS_PER_COMMIT):
            yield some
            some, elements = [], 0
        some.append(decide)
        elements += size
    if some:
        yield some
