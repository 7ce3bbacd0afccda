"""Writing files so that a reader, or the next start after `kill -9`, never meets half of one."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from autoresearch.core.errors import AutoresearchError

_HINTS = {
    errno.ENOSPC: "free some disk space, then run the same command again",
    errno.EDQUOT: "free some of your disk quota, then run the same command again",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "check the owner and the permissions of the folder",
    errno.EPERM: "check the owner and the permissions of the folder",
}


def io_error(action: str, path: Path, error: OSError) -> AutoresearchError:
    """What to raise for an OSError: one line that names the file, with a hint by its errno.

    Args:
        action: what failed, e.g. "write".
    """
    hint = _HINTS.get(error.errno or 0, "check the disk and the file system")
    return AutoresearchError(f"can't {action} {path}: {error.strerror or error}", hint)


def sync_directory(folder: Path) -> None:
    """Make the names of new and renamed files in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str | os.PathLike[str], data: bytes | str, durable: bool = True) -> None:
    """Replace the content of `path`: all of it or nothing, also after a power cut.

    Text is written as UTF-8 without newline translation. The mode of an existing file is kept; a symbolic link is
    replaced, not followed. The folder must exist.

    Args:
        durable: whether it is on the disk when this returns; without, a power cut may leave the former content.

    Raises:
        AutoresearchError: the file can't be written, e.g. the disk is full.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    # Not `tempfile`, whose files are private: here the umask decides, as for any file that the user makes.
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        try:
            with temporary.open("xb") as stream:
                if path.is_file() and not path.is_symlink():
                    os.fchmod(stream.fileno(), path.stat().st_mode & 0o7777)
                stream.write(content)
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        if durable:
            sync_directory(path.parent)
    except OSError as error:
        raise io_error("write", path, error) from error
