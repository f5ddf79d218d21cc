"""ModelGuard: has another process read a model first, since OpenVINO crashes, hangs or fills the memory on some files.

A model file that is damaged, or made to do harm, then costs a process of hsdag's and never the user's own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from hsdag.ir.errors import ModelError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

READER_COMMAND = (sys.executable, "-m", "hsdag.ir.guarded_reading")

START_LIMIT_S = 120.0
"""Time for importing OpenVINO."""

LEAST_LIMIT_S, SLOWEST_BYTES_PER_S = 4.0, 2_000_000
"""What reading may take: this much, and more for files of more bytes than are read meanwhile at this speed."""

IDLE_S = 5.0
"""How long the process waits for another model before it ends."""

READY = "ready"
"""What the process writes when it has started; for each model it writes why that is refused, or nothing, in JSON."""


class ModelGuard:
    """The process, started when it is needed, and again after it has ended; calls take turns."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._is_ready = 0, False
        self._turn = threading.Lock()
        atexit.register(self.close)

    def check(
        self, path: Path, shapes: Shapes, spare: Shapes, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Raise ModelError unless the process can read the model, give it these shapes, and lives on, all in time."""
        own_bytes, beside_bytes = _sizes_bytes(path)
        own = {"shapes": shapes, "spare": spare, "environment": dict(environment)}
        limit_s = LEAST_LIMIT_S + own_bytes / SLOWEST_BYTES_PER_S
        size = {"size_bytes": beside_bytes, "limit_s": limit_s}
        request = json.dumps({"path": str(path.absolute()), **size, **own}, default=int)
        with self._turn:
            try:
                refusal = self._refusal(request, limit_s)
            except _LateError as late:
                raise ModelError(f"{path} could not be read: {late}; export the model again") from late
            except _HarmedError as harm:
                reason = f"{path} is not a model that OpenVINO can read: {harm}; export the model again"
                raise ModelError(reason) from harm
        if refusal:
            raise ModelError(refusal.replace(_stem(path.absolute()), _stem(path)))

    def _refusal(self, request: str, limit_s: float) -> str:
        """Why the process refuses a model, empty where it does not. Raises _HarmedError where that cost its life."""
        try:
            return self._answer_to(request, limit_s)
        except _EndedError:  # just now, since there was nothing to do
            return self._answer_to(request, limit_s)

    def _answer_to(self, request: str, limit_s: float) -> str:
        try:
            process = self._running()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request.encode() + b"\n")
                process.stdin.flush()
            return self._line(limit_s)
        except BaseException:  # it is late, or its answer would be taken for that of the next request
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()

    def begin(self) -> None:
        """Start the process without waiting for it; a fork of this one has its own."""
        if self._process is not None and (self._owner != os.getpid() or self._process.poll() is not None):
            self.close()
        if self._process is None:
            self._owner, self._is_ready = os.getpid(), False
            self._process = subprocess.Popen(
                READER_COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, once it is ready. Raises ModelError where it does not start."""
        self.begin()
        assert self._process is not None
        if not self._is_ready:
            try:
                self._line(START_LIMIT_S)
            except _HarmedError as harm:
                raise ModelError(f"the process that reads models first cannot start: {harm}") from harm
            self._is_ready = True
        return self._process

    def _line(self, limit_s: float) -> str:
        """What the process writes next. Raises _HarmedError where it ends, or is late."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor, held, end_s = self._process.stdout.fileno(), b"", time.monotonic() + limit_s
        while not held.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))
            if not ready:
                raise _LateError(f"it took more than {limit_s:.0f} s")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                code = self._process.wait()
                raise _EndedError("its reader ended") if code == 0 else _HarmedError(_epitaph(code))
            held += piece
        return str(json.loads(held))


class _HarmedError(Exception):
    """What a model did to the process."""


class _LateError(_HarmedError):
    """It has not answered in time."""


class _EndedError(_HarmedError):
    """The process has ended by itself, as it does when it is idle."""


def _epitaph(code: int) -> str:
    if code == -signal.SIGABRT:
        return "its reader gave up (SIGABRT), perhaps for lack of memory"
    return f"its reader crashed ({signal.Signals(-code).name})" if code < 0 else f"its reader exited with code {code}"


def _stem(path: Path) -> str:
    """A path without its suffix; the present folder, which has no name, as it is."""
    return str(path.with_suffix("") if path.name else path)


def _sizes_bytes(path: Path) -> tuple[int, int]:
    """Of a model's own files; and of all files beside it, where its weights may lie.

    Its own have its name with another suffix (``m.bin``, ``m.onnx_data``), or with one more (``m.onnx.data``).
    """
    try:
        beside = list(path.rglob("*") if path.is_dir() else path.parent.iterdir())
    except PermissionError:  # of a folder whose files may be read, but not listed
        beside = [path, Path(f"{_stem(path)}.bin")]
    size_bytes = {file: _size_bytes(file) for file in beside}
    own = [size for file, size in size_bytes.items() if path.is_dir() or path.stem in (file.stem, Path(file.stem).stem)]
    return sum(own), sum(size_bytes.values())


def _size_bytes(file: Path) -> int:
    """Of a file; others come and go in its folder, and a folder counts as nothing."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0


GUARD = ModelGuard()
"""Of this process."""
