"""Files appear whole: written aside in the same folder, synced, renamed. Safe under kill -9.

A killed writer leaves at most a hidden `.part` file, which no reader looks at.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class WorkspaceUnwritable(OSError):
    """A file could not be written: full disk, read-only folder, no permission."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"cannot write {path}: {cause.strerror or cause}. Free space or allow writing there, "
            "or choose another folder with TENDRIL_WORKSPACE"
        )
        self.errno = cause.errno


class FolderInUse(RuntimeError):
    """Another process works in a folder that has room for one."""


@contextmanager
def sole_user(folder: Path, setting: str) -> Iterator[None]:
    """Hold `folder` (made if missing) for this process; the hold ends with it, however it ends.

    Raises `FolderInUse` naming `setting`, where another folder can be chosen.
    """
    try:
        make_folder(folder)
        lock = (folder / ".lock").open("ab")
    except OSError as error:
        raise WorkspaceUnwritable(folder / ".lock", error) from error
    in_use = (
        f"{folder}: another process works in it; replicas that share a workspace need one folder "
        f"each: set {setting}"
    )
    with _locked(lock, in_use):
        yield


@contextmanager
def sole_holder(lock: Path) -> Iterator[None]:
    """Hold the lock file of a process that is not running. Raises `FolderInUse` where it is."""
    with _locked(lock.open("ab"), f"{lock}: its process is running"):
        yield


@contextmanager
def _locked(file: BinaryIO, in_use: str) -> Iterator[None]:
    """Raises `FolderInUse` where another process has the lock."""
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(in_use) from None
        yield


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`, durably and all at once; readers see the old file or the new one.

    Makes missing folders. Raises `WorkspaceUnwritable` with the path, the cause and the cure.
    """
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which appears at `path` when the block ends, and not if it raises.

    Raises `WorkspaceUnwritable` for any `OSError`, those of the block included.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        make_folder(path.parent)
        try:
            with part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            _sync_folder(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except WorkspaceUnwritable:
        raise
    except OSError as error:
        raise WorkspaceUnwritable(path, error) from error


def make_folder(folder: Path) -> None:
    """`mkdir -p`, each new entry synced: a file is no more durable than the folders above it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
