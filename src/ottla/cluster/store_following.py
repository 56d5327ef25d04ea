"""Following a store: from one image to the next, by a watch that may fall silent.

Where it may, the controller writes `beat` at fixed times. A watch that reports nothing for longer
is opened again, after everything was read: commits and renewals may well succeed meanwhile.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ottla.cluster import layout
from ottla.cluster.image import ClusterImage, EpochWentBack
from ottla.cluster.restored import StoreRestored, check_later
from ottla.cluster.store import (
    ChangeBatch,
    Compacted,
    CoordinationStore,
    Put,
    StoreUnavailable,
    Write,
)
from ottla.cluster.values import BEAT_KEY, Change, Value
from ottla.model import BrokerId

log = logging.getLogger("ottla.cluster")

RETRY_PAUSE_S: Final = 1.0
BEAT_S: Final = 2.0
SILENCE_S: Final = 6.0  # without any change, before everything is read and the watch opened again


class StoreFollowing:
    """The way of one process from image to image. Never follows a store that went back."""

    def __init__(
        self,
        store: CoordinationStore,
        image: Callable[[], ClusterImage],
        advance: Callable[[ClusterImage], None],
        on_lost: Callable[[BaseException], None],
    ) -> None:
        """`advance` replaces the image that `image` returns with a newer one."""
        self._store = store
        self._image = image
        self._advance = advance
        self._on_lost = on_lost
        self._heard_s = _now_s()  # when the store reported something, or was read as a whole
        self._own: dict[str, tuple[bytes, Value]] = {}  # what this process last wrote, see `layout`
        self._restored: StoreRestored | None = None

    @property
    def is_deaf(self) -> bool:
        """True if the store's changes do not arrive here: then the lease should not be renewed."""
        return self._restored is not None or self._is_silent_for(2 * SILENCE_S)

    def note_writing(self, writes: Sequence[Write], changes: Sequence[Change]) -> None:
        """Remember writes that are about to be sent: they need not be decoded when they come back.

        There may be thousands, of a broker that begins to lead.
        """
        self._own = {
            write.key: (write.value, change.value)
            for write, change in zip(writes, changes, strict=True)
            if isinstance(write, Put) and change.value is not None
        }

    def forget_written(self) -> None:
        """Drop what `note_writing` remembers: it has come back."""
        self._own = {}

    def check_not_restored(self) -> None:
        """Raise StoreRestored once the store was found to have gone back."""
        if self._restored is not None:
            raise self._restored

    async def run(self) -> None:
        while True:
            try:
                if self._is_silent_for(SILENCE_S):
                    await self.read_all()
                await self._follow_watch()
            except StoreUnavailable as problem:
                self._on_lost(problem)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def read_all(self) -> None:
        """Go on with an image of the whole store, if it is newer."""
        sent_s = _now_s()
        image = layout.read_image(await self._store.range(""))
        if image.revision > self._image().revision:
            try:
                check_later(self._image(), image)
            except StoreRestored as problem:
                self._restored = problem
                raise
            self._advance(image)
        self._heard_s = max(self._heard_s, sent_s)

    async def beat(self, broker: BrokerId) -> None:
        """Change something at fixed times while this broker is the controller."""
        while True:
            await asyncio.sleep(BEAT_S)
            if self._image().controller_id == broker and self._restored is None:
                try:
                    await self._store.commit([Put(BEAT_KEY, str(broker).encode())])
                except StoreUnavailable as problem:
                    self._on_lost(problem)

    async def _follow_watch(self) -> None:
        """Apply what a watch reports, until it is silent for too long."""
        timeout_s = SILENCE_S if self._store.can_fall_silent else None
        watch = self._store.watch("", self._image().revision)
        try:
            async with contextlib.aclosing(watch) as batches:
                while True:
                    async with asyncio.timeout(timeout_s):
                        batch = await anext(batches, None)
                    if batch is None:
                        return
                    self._apply(batch)
        except TimeoutError:
            log.warning("watch of the coordination store is silent", extra={"seconds": SILENCE_S})
            await self.read_all()
        except Compacted:
            await self.read_all()

    def _apply(self, batch: ChangeBatch) -> None:
        self._heard_s = _now_s()
        image = self._image()
        if batch.revision <= image.revision:  # everything was read meanwhile
            return
        try:
            image = image.apply(layout.read_changes(batch, self._own), batch.revision)
        except EpochWentBack as problem:
            self._restored = StoreRestored(str(problem))
            raise self._restored from problem
        self._advance(image)

    def _is_silent_for(self, silence_s: float) -> bool:
        return self._store.can_fall_silent and _now_s() - self._heard_s > silence_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()
