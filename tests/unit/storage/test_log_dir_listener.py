"""The listener of a data directory that nothing follows."""

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.storage.log_dir_listener import LogDirListener, SilentDirListener
from ottla.storage.segments import Discarded

PATH = build.DIRECTORY / "00000000000000000000.log.deleted"


def test_a_silent_listener_removes_files_at_once(files: MemoryFiles) -> None:
    files.make_dir(build.DIRECTORY)
    file = files.create(PATH)
    listener: LogDirListener = SilentDirListener()
    listener.discard(Discarded(files, PATH, file))
    assert PATH not in files.paths()


def test_a_silent_listener_ignores_every_event() -> None:
    listener: LogDirListener = SilentDirListener()
    listener.note_offline("the disk failed")
    listener.note_durable(build.TP)
    listener.note_crowded(build.TP)
    assert not listener.note_epochs_wrong(build.TP)
