"""A small file that is replaced as a whole, at once or by another thread."""

from ottla.storage.files import Files, StrPath, replace_file
from ottla.storage.worker import Errand


class SmallFile:
    """A file whose content its owner decides. Every method belongs to the owner's thread.

    The content that was decided last is the one on disk in the end: a replacement that another
    thread has not begun by then is not carried out any more.
    """

    __slots__ = ("_content", "_files", "_path", "_pending")

    def __init__(self, files: Files, path: StrPath) -> None:
        self._files = files
        self._path = path
        self._content: bytes | None = None  # None as long as it is not known what is on disk
        self._pending: Replacement | None = None

    def note_read(self, content: bytes) -> None:
        """This content was found on disk."""
        self._content = content

    def replace(self, content: bytes) -> None:
        """Have this content on disk when this returns."""
        replacement = self.begin(content)
        if replacement is not None:
            replacement.run()
            replacement.end()

    def begin(self, content: bytes) -> "Replacement | None":
        """What has to be run, on any thread, for this content to be on disk; None if it is."""
        if content == self._content:
            return None
        self.give_up()
        self._pending = Replacement(self, content)
        return self._pending

    def write(self, content: bytes, *, is_syncing: bool) -> None:
        """Called by replacements, on any thread."""
        replace_file(self._files, self._path, content, is_syncing=is_syncing)

    def note_done(self, replacement: "Replacement") -> None:
        if replacement is self._pending:
            self._content, self._pending = replacement.content, None

    def remove(self) -> None:
        """Have no such file."""
        self.give_up()
        self._files.unlink(self._path)

    def give_up(self) -> None:
        """Let nobody replace the file from now on; one who is about to can finish."""
        if self._pending is not None:
            self._pending.errand.give_up()
        self._content = self._pending = None


class Replacement:
    """New content of a small file. Begun by the owner, run on any thread, ended by the owner."""

    __slots__ = ("_is_syncing", "content", "errand", "file")

    def __init__(self, file: SmallFile, content: bytes) -> None:
        self.file = file
        self.content = content
        self.errand = Errand(self._write)
        self._is_syncing = True

    def run(self, *, is_syncing: bool = True) -> None:
        """Write and sync, unless the owner has decided otherwise meanwhile."""
        self._is_syncing = is_syncing
        self.errand.run()

    def _write(self) -> None:
        self.file.write(self.content, is_syncing=self._is_syncing)

    def end(self) -> None:
        """It has been run: the owner knows what is on disk."""
        self.file.note_done(self)
