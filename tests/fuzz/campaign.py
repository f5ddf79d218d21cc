"""Campaigns: many inputs of a format, tried in processes that are killed when they hang and started again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.trial import LIMIT_S, PEAK_BYTES, Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 600.0
"""What reading a valid input may take the first time, when libraries are loaded."""


@dataclass
class Campaign:
    """What became of the inputs of a format; ``findings`` are the numbers and reasons of those that broke a promise."""

    name: str
    seed: int
    counts: Counter[Outcome] = field(default_factory=Counter)
    findings: list[tuple[int, Outcome, str]] = field(default_factory=list)
    peak_bytes: int = 0
    elapsed_s: float = 0.0
    tell: Callable[[str], None] = lambda _: None

    def run(self, num_inputs: int) -> None:
        """Try that many inputs."""
        begin_s, number = time.monotonic(), 0
        while number < num_inputs:
            number = self._run_from(number, num_inputs)
        self.elapsed_s += time.monotonic() - begin_s

    def _run_from(self, first: int, end: int) -> int:
        """Try inputs until the process ends; the number of the next one."""
        command = [sys.executable, "-m", "tests.fuzz.trial", self.name, *map(str, (self.seed, first, end))]
        with tempfile.TemporaryFile() as log, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, start_new_session=True
        ) as process:  # fmt: skip
            begun, done = None, first
            try:
                for words in _lines(process):
                    if words[0] == "seed":
                        raise RuntimeError(f"a seed of {self.name} is not accepted: {words}")
                    if words[0] == "begin":
                        begun = int(words[1])
                    if words[0] == "end":
                        begun, done = None, int(words[1]) + 1
                        self._count(int(words[1]), Outcome(words[2]), int(words[3]), words[4])
                is_late = False
            except TimeoutError:
                is_late = True
            _kill(process)
            code = process.wait()
            if begun is not None:
                outcome = Outcome.HANG if is_late else Outcome.CRASH
                self._found(begun, outcome, f"no answer in {LIMIT_S:g} s" if is_late else f"ended with code {code}")
                return begun + 1
            if is_late or (code != 0 and done < end):
                log.seek(0)
                raise RuntimeError(f"the process for {self.name} did not start: {log.read().decode()[-2000:]}")
        return done

    def _count(self, number: int, outcome: Outcome, peak_bytes: int, why: str) -> None:
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        if peak_bytes > PEAK_BYTES:
            self._found(number, Outcome.MEMORY, f"{peak_bytes / 1e6:.0f} MB")
        elif outcome in (Outcome.ACCEPTED, Outcome.REFUSED):
            self.counts[outcome] += 1
        else:
            self._found(number, outcome, why)

    def _found(self, number: int, outcome: Outcome, why: str) -> None:
        self.counts[outcome] += 1
        self.findings.append((number, outcome, why))
        self.tell(f"{self.name} {number}: {outcome.value}: {why}")


def _lines(process: subprocess.Popen[bytes]) -> Iterator[list[str]]:
    """The words of every line that the process writes. Raises TimeoutError when the next one is late."""
    assert process.stdout is not None
    descriptor, held, limit_s = process.stdout.fileno(), b"", START_S
    while True:
        ready, _, _ = select.select([descriptor], [], [], limit_s)
        if not ready:
            raise TimeoutError
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            yield line.decode().split(" ", 4)
            limit_s = START_S if line == b"loaded" else LIMIT_S


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
