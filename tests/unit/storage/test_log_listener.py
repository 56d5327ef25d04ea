"""The listener of logs that nothing follows."""

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.model import Offset, Position
from ottla.storage.damages import CorruptRange
from ottla.storage.log_listener import LogListener, SilentListener
from ottla.storage.segments import Discarded

PATH = build.DIRECTORY / "00000000000000000000.log.deleted"


def test_a_silent_listener_removes_files_at_once(files: MemoryFiles) -> None:
    files.make_dir(build.DIRECTORY)
    file = files.create(PATH)
    listener: LogListener = SilentListener()
    listener.discard(Discarded(files, PATH, file))
    assert PATH not in files.paths()


def test_a_silent_listener_ignores_every_event() -> None:
    listener: LogListener = SilentListener()
    listener.note_durable(build.TP)
    listener.note_crowded(build.TP)
    listener.note_failed(build.TP, OSError(5, "bad sector"))
    listener.note_damaged(build.TP, CorruptRange(Offset(0), Offset(1), Offset(0), Position(0)))
    listener.before_truncate(build.TP)
    assert not listener.note_epochs_wrong(build.TP), "so the log reads them at once"
