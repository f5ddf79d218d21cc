"""Reading a model in another process first, since OpenVINO crashes, hangs or fills the memory on some files.

A damaged or malicious model file then ends hsdag's reader process and never the user's own.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from hsdag.base.errors import HsdagError, ModelError
from hsdag.base.processes import CandidateFailed, Request, WorkerClient, WorkerDefect, process_command

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

READER_COMMAND = process_command("hsdag.ir.graph.reader_process")

LEAST_LIMIT_S, SLOWEST_BYTES_PER_S = 15.0, 2_000_000
"""Limit on the time to read a model: the first, in seconds, plus the size of its files divided by the second."""

IDLE_S = 5.0
"""Seconds without a request after which the reader process ends; after 80% of them it is restarted instead of asked."""


@dataclass(frozen=True)
class ReadModel(Request[None]):
    """A request to read a model, give it shapes, and forget it; environment variables are set for this and later ones.

    ``beside_bytes`` is the size of all files beside it; the process ends itself soon after ``limit_s``.
    """

    path: Path
    shapes: Shapes
    spare: Shapes
    environment: Mapping[str, str]
    beside_bytes: int
    limit_s: float


class ModelGuard:
    """A reader process, started on first use and again after it has ended; calls take turns."""

    def __init__(self) -> None:
        self._client: WorkerClient | None = None
        self._owner = 0
        self._ends_s = math.inf
        self._turn = threading.Lock()
        atexit.register(self.close)

    def check(
        self, path: Path, shapes: Shapes, spare: Shapes, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Raise ModelError unless the process reads the model and gives it these shapes in time, without crashing."""
        own_bytes, beside_bytes = _sizes_bytes(path)
        limit_s = LEAST_LIMIT_S + own_bytes / SLOWEST_BYTES_PER_S
        sizes = {name: tuple(map(int, shape)) for name, shape in shapes.items()}
        request = ReadModel(path.absolute(), sizes, dict(spare), dict(environment), beside_bytes, limit_s)
        with self._turn:
            try:
                self.begin().call(request, limit_s)
            except CandidateFailed as failure:
                if failure.is_late:
                    advice = "try again when the machine is less busy, or export the model again"
                    raise ModelError(f"{path} could not be read: {failure.reason}; {advice}") from failure
                what = "is not a model that OpenVINO can read"
                raise ModelError(f"{path} {what}: {failure.reason}; export the model again") from failure
            except WorkerDefect as defect:
                raise ModelError(f"{path} is not a model that OpenVINO can read: {defect}") from defect
            except HsdagError as refusal:
                raise ModelError(str(refusal).replace(_stem(path.absolute()), _stem(path))) from refusal
            finally:
                self._ends_s = time.monotonic() + 0.8 * IDLE_S

    def close(self) -> None:
        """End the reader process."""
        client, self._client = self._client, None
        if client is not None and self._owner == os.getpid():
            client.close()

    def begin(self) -> WorkerClient:
        """Start the process without waiting for it; a fork of this process starts its own."""
        if self._client is None or self._owner != os.getpid():
            self._client = WorkerClient(Request[None](), READER_COMMAND, name="reader")
            self._owner = os.getpid()
        if time.monotonic() > self._ends_s:  # it has ended itself for lack of requests
            self._client.restart()
            self._ends_s = math.inf
        self._client.begin()
        return self._client


def _stem(path: Path) -> str:
    """Return a path without its suffix; the current folder, which has no name, as it is."""
    return str(path.with_suffix("") if path.name else path)


def _sizes_bytes(path: Path) -> tuple[int, int]:
    """Return the bytes of a model's own files, and of all files beside it, where its weights may be.

    Its own files have its name with another suffix (``m.bin``, ``m.onnx_data``) or with one more (``m.onnx.data``).
    """
    try:
        beside = list(path.rglob("*") if path.is_dir() else path.parent.iterdir())
    except PermissionError:  # a folder whose files may be read, but not listed
        beside = [path, Path(f"{_stem(path)}.bin")]
    own_bytes = beside_bytes = 0
    for file in beside:
        with suppress(OSError):  # other files appear and vanish meanwhile
            size_bytes = file.stat().st_size if file.is_file() else 0
            beside_bytes += size_bytes
            own_bytes += size_bytes * (path.is_dir() or path.stem in (file.stem, Path(file.stem).stem))
    return own_bytes, beside_bytes


GUARD = ModelGuard()
"""The guard of this process."""
