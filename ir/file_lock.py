"""FileLock: keeps other processes out of what a file stands for, until its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from hsdag.ir.errors import OutputError, SearchError


class FileLock:
    """A lock on a file, which is made where it is missing. It ends with this object, if it is not released before.

    A file system that has no locks gives none, and nobody is kept out.
    """

    def __init__(self, path: Path, taken: str) -> None:
        """Raises SearchError, which says ``taken``, where somebody else has the lock; OutputError for the file."""
        self._path = path
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o666)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # who had it has just removed the file
                raise BlockingIOError
        except BlockingIOError as error:
            self.release()
            raise SearchError(taken) from error
        except OSError:  # a file system without locks
            pass

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file, and let others have the lock."""
        self._path.unlink(missing_ok=True)
        self.release()
