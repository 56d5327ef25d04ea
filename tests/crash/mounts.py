"""File systems made for one test: one whose power can be cut, and one that is soon full."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_DISK_BYTES: Final = 512 << 20  # a sparse file: only what is written takes room
_SMALL_BYTES: Final = 24 << 20
_PATIENCE_S: Final = 60
_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_LOG_FLUSH: Final = 2


class Ext4:
    """ext4 in a file. Where it is mounted, `cut_power` loses whatever has not been synced."""

    def __init__(self, image: Path, mount_point: Path, size_bytes: int = _DISK_BYTES) -> None:
        self.path = mount_point
        self._image = image
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(image))
        mount_point.mkdir()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        if self.path.is_mount():
            _run("umount", str(self.path))

    def cut_power(self) -> None:
        """From here on nothing reaches the disk: neither data nor the file system's journal."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_LOG_FLUSH.to_bytes(4, sys.byteorder))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Mount what reached the disk; whoever had it open must have been killed before."""
        self.unmount()
        self.mount()


class SmallDisk:
    """A tmpfs with a limit."""

    def __init__(self, mount_point: Path) -> None:
        self.path = mount_point
        mount_point.mkdir()

    def mount(self) -> None:
        _run("mount", "-t", "tmpfs", "-o", f"size={_SMALL_BYTES}", "tmpfs", str(self.path))

    def unmount(self) -> None:
        if self.path.is_mount():
            _run("umount", str(self.path))


def mounting_problem(kind: str, scratch: Path) -> str | None:
    """Why a file system of this kind cannot be mounted here; None when it can."""
    if os.geteuid() != 0:
        return f"mounting a {kind} file system needs root, and this is user {os.geteuid()}"
    probe = scratch / "probe"
    probe.mkdir()
    try:
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(probe))
            _run("umount", str(probe))
            return None
        if shutil.which("mkfs.ext4") is None:
            return "making a file system in a file needs mkfs.ext4, which is not installed"
        image = scratch / "probe.ext4"
        with image.open("wb") as file:
            file.truncate(8 << 20)
        _run("mkfs.ext4", "-q", "-F", str(image))
        _run("mount", "-o", "loop", str(image), str(probe))
        _run("umount", str(probe))
    except subprocess.CalledProcessError as problem:
        said = problem.stderr.decode(errors="replace").strip()
        return f"a {kind} file system cannot be mounted here: {said}"
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S)
