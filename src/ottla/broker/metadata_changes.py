"""Changes of the cluster's metadata for clients: many changes in few commits of the store."""

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

Result = TypeVar("Result")
Decide = Callable[[ClusterImage], Decision[Result]]

# Changes that are decided in one turn of the loop and written by one commit: few enough that
# other requests wait for neither.
CHANGES_PER_COMMIT: Final = 30
_ELEMENTS_PER_COMMIT: Final = 2000  # of all changes in it, as far as they have any


class MetadataChanges:
    """Commits changes, and returns once this broker serves what was decided."""

    def __init__(self, state: ClusterState, replicas: Replicas) -> None:
        self._state = state
        self._replicas = replicas

    async def each(
        self,
        decides: Iterable[Decide[Result]],
        *,
        sizes: Iterable[int] | None = None,
        validate_only: bool = False,
    ) -> Sequence[Result | ApiError]:
        """Commit every change that is allowed; the results, or errors, are in their order.

        `sizes` says how many elements each change has, if that can be many: replicas, settings.
        Both are read as far as the next commit, so that many changes need not exist at once.
        With `validate_only` nothing changes and the results are what they would be, each change
        by itself. When the store refuses a commit, all changes in it have that error.
        """
        results: list[Result | ApiError] = []
        for number, some in enumerate(_together(decides, sizes)):
            if number:
                await asyncio.sleep(0)  # changes that are all refused wait for nothing
            if validate_only:
                results += decide_each(self._state.image, some).result
            else:
                made = await self._commit(some)
                results += made
        return results

    async def _commit(self, decides: Sequence[Decide[Result]]) -> Sequence[Result | ApiError]:
        results: list[Result | ApiError] = []
        while len(results) < len(decides):
            rest = decides[len(results) :]
            try:
                made = await self._state.commit(partial(self._decide, decides=rest))
                results += made
                await self._replicas.wait_applied(self._state.image.revision)
            except ApiError as refused:
                return [*results, *(refused for _ in rest)]
        return results

    def _decide(
        self, image: ClusterImage, decides: Sequence[Decide[Result]]
    ) -> Decision[tuple[Result | ApiError, ...]]:
        return decide_each(image, decides, fits=partial(self._state.fits, image))


def _together(
    decides: Iterable[Decide[Result]], sizes: Iterable[int] | None
) -> Iterator[list[Decide[Result]]]:
    """The changes of one commit each; a change that is too large has one of its own."""
    some: list[Decide[Result]] = []
    elements = 0
    for decide, size in zip(decides, repeat(0) if sizes is None else sizes, strict=False):
        if some and (len(some) >= CHANGES_PER_COMMIT or elements + size > _ELEMENTS_PER_COMMIT):
            yield some
            some, elements = [], 0
        some.append(decide)
        elements += size
    if some:
        yield some
