"""Writing so that nothing is lost: a file or a folder is either there in full or not at all."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hdccf.errors import DiskFullError, HdccfError

TEMPORARY = ".tmp-"
"""Part of the name of a file or folder that is being written."""


@contextmanager
def atomic_file(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what is written there replaces it when the block ends well."""
    if path.exists() and not overwrite:
        raise HdccfError(
            f"{path} exists; choose another name, or replace it with overwrite=True (--overwrite)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}{TEMPORARY}", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        with _room_for(path):
            yield temporary
            _flush_to_disk(temporary)
        temporary.chmod(0o666 & ~_umask())  # mkstemp's files are private; a result is not
        temporary.replace(path)
        _flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Like `atomic_file` for a folder: filled under another name, then renamed."""
    if path.exists() and not overwrite:
        raise HdccfError(
            f"{path} exists; choose another folder, or replace it with overwrite=True (--overwrite)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}{TEMPORARY}", dir=path.parent))
    try:
        with _room_for(path):
            yield temporary
            for written in sorted(temporary.rglob("*")):
                _flush_to_disk(written)
        temporary.chmod(0o777 & ~_umask())
        if path.exists() and not overwrite:
            raise HdccfError(f"{path} was created by another process meanwhile; choose another folder")
        if path.exists():
            # A rename cannot replace a folder that is not empty: the old one is renamed first, and comes
            # back if the new one cannot take its place.
            aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old-", dir=path.parent))
            path.replace(aside)
            try:
                temporary.replace(path)
            except OSError:
                aside.replace(path)
                raise
            shutil.rmtree(aside)
        else:
            temporary.replace(path)
        _flush_to_disk(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_NO_ROOM = {os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
_NO_ROOM["thrift: transport error"] = errno.ENOSPC  # Polars, where only the end of a file did not fit


@contextmanager
def _room_for(path: Path) -> Iterator[None]:
    """Says in one line that there is no room for `path`; Polars and safetensors have errors of their own."""
    try:
        yield
    except Exception as cause:
        for words, number in _NO_ROOM.items():
            if getattr(cause, "errno", None) == number or words in str(cause):
                why = os.strerror(number)
                message = f"{path} could not be written: {why}; make room, or write elsewhere, and call again"
                full = DiskFullError(message)
                full.errno, full.strerror = number, why
                raise full from cause
        raise


@contextmanager
def locked(folder: Path, error: type[HdccfError]) -> Iterator[None]:
    """Lets one process at a time write into a folder; a second one is refused at once.

    The lock is a file beside the folder, which may not exist yet. The system releases it when its process
    ends, however it ends.
    """
    lock = FileLock(folder.parent / f".{folder.name}.lock", timeout=0)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as cause:
        message = f"another process is writing into {folder}; wait for it, or take another folder"
        raise error(message) from cause
    except OSError as cause:
        raise error(f"{folder} could not be written ({cause}); check the folder") from cause
    # What a killed process left of its writes.
    for left in [*folder.glob(f".*{TEMPORARY}*"), *folder.parent.glob(f".{escape(folder.name)}{TEMPORARY}*")]:
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    try:
        yield
    finally:
        # While it is still held: filelock notices a lock file that was removed meanwhile.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as readable JSON, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(
            json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )


def read_described(
    file: Path, what: str, *, kind: str, version: int, writer: str, remedy: str, error: type[HdccfError]
) -> dict[str, Any]:
    """The JSON that describes a folder, checked to be of this kind and version.

    `what` is what the folder should hold, `writer` what would have written it, `remedy` what to do if it is
    damaged or of another version.
    """
    folder = file.parent
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as cause:
        missing = f"{folder} holds no {what} (no {file.name}); give a folder that {writer} wrote"
        raise error(missing) from cause
    except ValueError as cause:
        raise error(f"{file} is damaged; {remedy}") from cause
    if not isinstance(found, dict) or found.get("format") != kind:
        raise error(f"{folder} holds no {what}; give a folder that {writer} wrote")
    if found.get("version") != version:
        raise error(
            f"{folder} has format version {found.get('version')}; this hdccf reads version {version}: "
            f"{remedy}, or install the hdccf that wrote it"
        )
    return found


def _flush_to_disk(path: Path) -> None:
    """Without this a power cut after the rename could leave the new name with the old nothing in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
