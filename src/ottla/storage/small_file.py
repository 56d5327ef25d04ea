"""A small file that is replaced as a whole, at once or by another thread."""

from collections.abc import Callable
from typing import Generic, TypeVar

from ottla.storage.disk_worker import Errand
from ottla.storage.files import Files, StrPath, replace_file

Content = TypeVar("Content")


class SmallFile(Generic[Content]):
    """A file whose content its owner decides. Every method belongs to the owner's thread.

    `encode` makes bytes of the content, on the thread that writes them. The content that was
    decided last is the one on disk in the end: a replacement that another thread has not begun by
    then is not carried out any more.
    """

    __slots__ = ("_content", "_encode", "_files", "_path", "_pending")

    def __init__(self, files: Files, path: StrPath, encode: Callable[[Content], bytes]) -> None:
        self._files = files
        self._path = path
        self._encode = encode
        self._content: Content | None = None  # None as long as it is not known what is on disk
        self._pending: Replacement[Content] | None = None

    def replace(self, content: Content) -> None:
        """Have this content on disk when this returns."""
        replacement = self.begin(content)
        if replacement is not None:
            replacement.run()
            replacement.end()

    def begin(self, content: Content) -> "Replacement[Content] | None":
        """The replacement to run, on any thread, for this content to be on disk; None if it is."""
        if content == self._content:
            return None
        self.give_up()
        self._pending = Replacement(self, content)
        return self._pending

    def write(self, content: Content) -> None:
        """Called by replacements, on any thread."""
        replace_file(self._files, self._path, self._encode(content))

    def note_done(self, replacement: "Replacement[Content]") -> None:
        if replacement is self._pending:
            self._content, self._pending = replacement.content, None

    def give_up(self) -> None:
        """Cancel the pending replacement; one that has begun can finish."""
        if self._pending is not None:
            self._pending.errand.give_up()
        self._content = self._pending = None


class Replacement(Generic[Content]):
    """New content of a small file. Begun by the owner, run on any thread, ended by the owner."""

    __slots__ = ("content", "errand", "file")

    def __init__(self, file: SmallFile[Content], content: Content) -> None:
        self.file = file
        self.content = content
        self.errand = Errand(self._write)

    def run(self) -> None:
        """Write and sync, unless the owner has decided otherwise meanwhile."""
        self.errand.run()

    def _write(self) -> None:
        self.file.write(self.content)

    def end(self) -> None:
        """The replacement has been run: note the content on disk."""
        self.file.note_done(self)
