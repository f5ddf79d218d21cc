"""WorkerClient: a worker process that is killed and started again when it crashes or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import HsdagError

WORKER_COMMAND = (sys.executable, "-m", "hsdag.runtime.measuring.worker")

START_LIMIT_S = 600.0
"""Time for importing OpenVINO, reading the model and loading the plugins."""


POLL_S, PATIENCE_S = 0.5, 5.0
"""How often a waiting call asks whether to go on, and how long a candidate may take once it should not."""


class CandidateFailed(Exception):  # noqa: N818 - an ending we expect, not an error
    """A candidate that did not compile or run; ``lost_worker`` when the process died or hung over it."""

    def __init__(self, reason: str, *, lost_worker: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lost_worker = lost_worker


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to know: the model's file, fixed shapes, devices, and where inputs come from."""

    model: Path
    devices: tuple[DeviceSpec, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0
    inputs: Path | None = None

    def document(self) -> dict[str, Any]:
        """The first line sent to a worker."""
        devices = [{"name": d.name, "plugin": d.plugin, "properties": dict(d.properties)} for d in self.devices]
        return {
            "model": str(self.model.resolve()),
            "devices": devices,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "seed": self.seed,
            "inputs": str(self.inputs) if self.inputs else None,
        }


class WorkerClient:
    """Calls a worker process, with a time limit each.

    A worker that dies or misses a limit is killed with all its children; the call raises CandidateFailed and
    the next one starts a new worker. While ``should_abandon`` says so, a call gives up after PATIENCE_S. Use as a
    context manager.
    """

    def __init__(self, setup: WorkerSetup, command: Sequence[str] = WORKER_COMMAND) -> None:
        self.setup = setup
        self.num_starts = 0
        self.should_abandon: Callable[[], bool] = lambda: False
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the client

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether a worker process is up."""
        return self._process is not None

    def call(self, do: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises CandidateFailed when the worker reports an error, dies, or takes more than ``limit_s``; HsdagError
        when the worker cannot even start on this model and these devices.
        """
        if self._process is None:
            self._start()
        return self._exchange({"do": do, **arguments}, limit_s)

    def restart(self) -> None:
        """End the process; the next call starts another one."""
        self._kill()

    def close(self) -> None:
        """End the worker."""
        self._kill()
        self._log.close()

    def _start(self) -> None:
        self._log.seek(0)
        self._log.truncate()
        self._buffer = b""
        self.num_starts += 1
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self._exchange(self.setup.document(), START_LIMIT_S)
        except CandidateFailed as failure:
            self._kill()
            raise HsdagError(f"the measuring process cannot start: {failure.reason}") from failure

    def _exchange(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._lost(self._epitaph(process))
        line = self._read_line(process, limit_s)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            if answer.get("user"):
                raise HsdagError(answer["error"])
            raise CandidateFailed(answer["error"])
        return answer

    def _read_line(self, process: subprocess.Popen[bytes], limit_s: float) -> bytes:
        assert process.stdout is not None
        end = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = end - time.monotonic()
                if left <= 0:
                    self._lost(f"gave no answer within {limit_s:g} s and was killed")
                if self.should_abandon() and limit_s - left > PATIENCE_S:
                    self._lost("was given up when the search was interrupted")
                if not selector.select(min(left, POLL_S)):
                    continue
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    self._lost(self._epitaph(process))
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _lost(self, reason: str) -> None:
        self._kill()
        raise CandidateFailed(f"the worker {reason}", lost_worker=True)

    def _epitaph(self, process: subprocess.Popen[bytes]) -> str:
        """How the process ended, with the last line it printed."""
        code = process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"{how} ({lines[-1].strip()[:200]})" if lines else how

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
