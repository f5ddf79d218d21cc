"""Whether place, profile, solve and train survive SIGKILL at random moments, and the executor what goes wrong.

Commands are killed several times in a row, at moments drawn over the time that an undisturbed command takes. A kill is
survived if every file can be read, if nothing that was on disk is lost or made again, and if the command ends with an
answer after the last kill of a row:

- place: the events on disk stay as they are, and no placement is measured twice. It goes on with --resume.
- profile: what was measured of a device, or between devices, stays in the cache, byte for byte.
- solve: no later plan is worse than the one that was on disk. It goes on with --start and the file of --output.
- train: no stored update is lost, and the policy is that of an undisturbed training. It goes on with --resume.
- executor: a model of two branches runs on two CPU devices, four requests in flight. Inferences are cancelled or get
  inputs that do not fit, and the model is compiled for other placements. Outputs are compared with the plain CPU's.
  Threads and file handles may not become more, and memory may grow by 16 MB, a hundredth of all results.

Exit status 1 where something is lost.

Usage: python benchmarks/reliability.py [place profile solve train executor] [--kills 200] [--inferences 100000]
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
from machine import options
from openvino import opset13
from safetensors.numpy import load_file

import hsdag
from hsdag.base.errors import ExecutionError
from hsdag.commands.sources import build_problem
from hsdag.methods.policy_file import StateFile
from hsdag.models import save_model_files
from hsdag.runtime.problem.problem_file import read_problem, write_problem
from tests.hsdag.runtime.executor.placing import drawn

DEVICES = "--devices FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
END_LIMIT_S = 600.0
"""A command that is left alone has to end by then."""
TRAINING, RESUME = "train enas --problems 4 --updates 150 --expert-evaluations 2000 --unseen 2", "--resume"


class Lost(Exception):  # noqa: N818 - the outcome of a trial
    """What a kill has cost."""


def whole_lines(path: Path) -> list[str]:
    """Lines of a file but for a last one that has no end, which is dropped when a search goes on."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def events_kept(folder: Path, before: list[str] | None, is_end: bool) -> list[str]:
    """Of place: the events."""
    events = whole_lines(folder / "out.run" / "events.jsonl")
    if before and events[: len(before)] != before:
        raise Lost(f"of {len(before)} events not all are left")
    if len({json.loads(line)["placement"] for line in events}) < len(events):
        raise Lost("a placement was measured twice")
    if is_end and not getattr(hsdag.Placement.load(folder / "out.json").latency, "measured", False):
        raise Lost("the placement was not measured")
    return events


def entries_kept(folder: Path, before: dict[str, bytes] | None, is_end: bool) -> dict[str, bytes]:
    """Of profile, of two devices and six cuts: the entries of the cache, by their names."""
    found = {path.name: path.read_bytes() for path in (folder / "cache" / "profiles").glob("*.json")}
    if any(found.get(name) != content for name, content in (before or {}).items()):
        raise Lost("an entry of the cache is lost, or was measured again")
    if is_end:
        read_problem(folder / "out.json")
    return found


def value_kept(folder: Path, before_s: float | None, is_end: bool) -> float | None:
    """Of solve: the seconds that the plan takes."""
    if not (folder / "out.json").exists():
        if is_end or before_s is not None:
            raise Lost("there is no plan")
        return None
    found_s = hsdag.simulate(folder.parent.parent / "problem.json", folder / "out.json").value
    if before_s is not None and found_s > before_s * (1 + 1e-9):
        raise Lost(f"the plan takes {found_s:g} s, and one that was on disk {before_s:g} s")
    return found_s


def updates_kept(folder: Path, before: int | None, is_end: bool) -> int:
    """Of train: the number of updates. A finished policy is compared with the one of the undisturbed training."""
    stored = StateFile(folder / "out.state").load()
    is_end |= stored is None and (folder / "out.safetensors").exists()  # killed when all was done
    done = int(stored[1]["done"]) if stored is not None else 0
    if is_end:
        weights = load_file(folder / "out.safetensors")
        undisturbed = folder.parent / "undisturbed" / "out.safetensors"
        expected = load_file(undisturbed) if undisturbed.exists() else weights
        if any(not np.array_equal(weights[name], array) for name, array in expected.items()):
            raise Lost("the policy differs from that of an undisturbed training")
    elif done < (before or 0):
        raise Lost(f"of {before} updates {done} are left")
    return done


@dataclass(frozen=True)
class Command:
    """A command line and its output; the option by which it goes on once ``begun`` is there; and a check.

    ``kept`` takes the folder, what it gave after the kill before, and whether the command has ended. Raises Lost.
    """

    line: str
    output: str
    kept: Callable[[Path, Any, bool], Any]
    begun: str = ""
    goes_on: str = ""


PLACE = f"place model.xml {DEVICES} --budget 12s --max-evaluations 12"
SOLVE, START = "solve problem.json --method sa --budget 6s", "--start {}/out.json"
COMMANDS = {
    "place": Command(PLACE, "out.json", events_kept, "out.run", RESUME),
    "profile": Command(f"profile model.xml {DEVICES}", "out.json", entries_kept),
    "solve": Command(SOLVE, "out.json", value_kept, "out.json", START),
    "train": Command(TRAINING, "out.safetensors", updates_kept, "out.state", RESUME),
}


class Trial:
    """A command in a folder of its own, killed again and again until it is let go on to its end."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command, self.folder, self.kept = command, folder, None
        folder.mkdir()

    def run(self, moment_s: float | None = None) -> float | None:
        """Kill the command so long after its first message; seconds that it took, None where it was killed.

        Without a moment it goes on to its end, and its answer is checked. Raises Lost.
        """
        command, inputs, messages = self.command, self.folder.parent.parent, self.folder / ".messages"
        words = [*command.line.split(), "-o", str(self.folder / command.output)]
        if (self.folder / command.begun).exists():
            words += command.goes_on.format(self.folder).split()
        cache = (self.folder if command.kept is entries_kept else inputs) / "cache"  # others share one
        environment = os.environ | {"HSDAG_CACHE_DIR": str(cache)}
        with messages.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "hsdag", *words], cwd=inputs, env=environment, stdout=file, stderr=file
            )
        while not messages.stat().st_size and process.poll() is None:
            time.sleep(0.01)
        begin_s = time.monotonic()
        try:
            code = process.wait(END_LIMIT_S if moment_s is None else moment_s)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            process.wait()
        took_s = time.monotonic() - begin_s
        if code or (code is None and moment_s is None):
            raise Lost(f"it ended with exit code {code}: {messages.read_text().strip().splitlines()[-1:]}")
        self.read_all()
        self.kept = command.kept(self.folder, self.kept, moment_s is None)
        return None if code is None else took_s

    def read_all(self) -> None:
        """Read every file that is not hidden. Raises Lost for one that is not whole."""
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file() or any(part.startswith(".") for part in path.relative_to(self.folder).parts):
                continue
            try:
                if path.suffix == ".json":
                    json.loads(path.read_text())
                elif path.suffix == ".jsonl":
                    for line in whole_lines(path):
                        json.loads(line)
                elif path.suffix in (".safetensors", ".state"):
                    load_file(path)
            except Exception as error:
                raise Lost(f"{path.name} is half-written: {error}") from error


def survived(name: str, inputs: Path, kills: int, row: int, rng: np.random.Generator) -> int:
    """How many kills of a command were survived."""
    folder, found = inputs / name, 0
    folder.mkdir()
    times_s = [Trial(COMMANDS[name], folder / which).run() for which in ("warm", "undisturbed")]  # the first compiles
    whole_s = min(taken_s for taken_s in times_s if taken_s is not None)
    print(f"{name}: {whole_s:.1f} s when nothing disturbs it", flush=True)
    done = number = 0
    while done < kills:
        trial, in_row, number = Trial(COMMANDS[name], folder / str(number)), 0, number + 1
        try:
            while in_row < min(row, kills - done) and trial.run(float(rng.uniform(0, whole_s))) is None:
                in_row += 1
            trial.run()
            found += in_row
        except Lost as lost:
            print(f"{name}, after {in_row} kills: {lost}", flush=True)
            in_row = max(in_row, 1)
        done += in_row
        shutil.rmtree(trial.folder)
    return found


# ---- executor

SIZE, IN_FLIGHT, MOST_GROWTH_MB = 4096, 4, 16.0
BALANCED = 1
"""The seed of a placement with parts on both devices."""
FATES = {"right": 0.88, "cancelled": 0.08, "refused": 0.04}
REASONS = {"cancelled": "was cancelled", "refused": "Reshape"}


def branches() -> ov.Model:
    """x, whose second branch takes the shape that another input asks for, and a join of both."""
    x = opset13.parameter([1, SIZE], np.float32, name="x")
    shape = opset13.parameter([2], np.int64, name="shape")
    stem = opset13.relu(x)
    right = opset13.sigmoid(opset13.reshape(opset13.sin(stem), shape, special_zero=False))
    flat = opset13.reshape(opset13.cos(right), np.asarray([1, SIZE], np.int64), special_zero=False)
    return ov.Model([opset13.result(opset13.add(opset13.tanh(stem), flat))], [x, shape], "branches")


def resources() -> tuple[float, int, int]:
    """MB, threads and file handles of the process, once threads of models that are gone had time to end."""
    process = psutil.Process()
    for _ in range(10):
        gc.collect()
        time.sleep(0.3)
    return process.memory_info().rss / 2**20, process.num_threads(), process.num_fds()


class Endurance:
    """Inferences of one model on a work-conserving executor, and how they ended."""

    def __init__(self) -> None:
        self.rng, self.core, self.model = np.random.default_rng(0), ov.Core(), branches()
        self.counts, self.surprises, self.samples = Counter[str](), list[str](), list[tuple[list[Any], Any]]()
        plain = self.core.compile_model(self.model.clone(), "CPU")
        for k in range(32):
            x = self.rng.standard_normal((1, SIZE)).astype(np.float32)
            inputs = [x, np.asarray([1 << k % 8, SIZE >> k % 8], np.int64)]
            self.samples.append((inputs, np.array(plain(inputs)[0])))
        self.compile(BALANCED)

    def compile(self, seed: int) -> None:
        """For a placement by its seed."""
        placement = drawn(self.model, seed)
        self.running = hsdag.compile_work_conserving(self.model, placement, self.core, time_limit_s=60.0)
        self.requests = [self.running.create_infer_request() for _ in range(IN_FLIGHT)]

    def turn(self) -> None:
        """An inference on every request at once."""
        fates = self.rng.choice(list(FATES), IN_FLIGHT, p=list(FATES.values())).tolist()
        chosen = [self.samples[int(self.rng.integers(len(self.samples)))] for _ in self.requests]
        for number, (request, fate, (inputs, _)) in enumerate(zip(self.requests, fates, chosen, strict=True)):
            misfit = np.asarray([SIZE + 1, self.counts.total() + number], np.int64)  # never the same twice
            request.start_async([inputs[0], misfit] if fate == "refused" else inputs)
        for request, fate in zip(self.requests, fates, strict=True):
            if fate == "cancelled":
                request.cancel()
        for request, fate, (_, output) in zip(self.requests, fates, chosen, strict=True):
            self.end(request, fate, output)

    def end(self, request: Any, fate: str, output: np.ndarray) -> None:
        """Wait, and compare how it ended with what was provoked."""
        self.counts[fate] += 1
        try:
            request.wait()
        except ExecutionError as error:
            if REASONS.get(fate, "no reason") not in str(error):
                self.surprises.append(f"{fate}: {error}")
            return
        if fate == "refused" or not np.allclose(request.results[0], output, atol=1e-5):
            self.surprises.append(f"{fate}: it ended well, or with a wrong output")

    def until(self, inferences: int) -> tuple[float, int, int]:
        """Go on until there were so many; what the process then holds, with one model that is new."""
        while self.counts.total() < inferences:
            self.turn()
            if self.rng.random() < 0.02:
                self.running.close()
                self.compile(int(self.rng.integers(1 << 30)))
        self.running.close()
        self.compile(BALANCED)
        self.turn()
        return resources()


def endured(inferences: int) -> bool:
    """Whether inferences end as they should, and nothing is left of them."""
    run = Endurance()
    readings = [run.until(inferences * part // 11) for part in range(1, 12)]  # the first part warms up
    run.running.close()
    growth = [max(each[k] for each in readings[1:]) - readings[0][k] for k in range(3)]
    print(f"{run.counts.total()} inferences {dict(run.counts)}, {len(run.surprises)} that did not end as they should")
    print(f"growth {growth[0]:.1f} MB (bar {MOST_GROWTH_MB:.0f}), {growth[1]} threads and {growth[2]} handles (bar 0)")
    for surprise in run.surprises[:10]:
        print(f"FAILED: {surprise}")
    return not run.surprises and growth[0] <= MOST_GROWTH_MB and readings[-1][1] <= readings[0][1] and growth[2] <= 0


def main() -> int:
    row = 4, "kills before a command is let go on to its end"
    kills = 200, "of all commands together"
    given = options(__doc__, (*COMMANDS, "executor"), kills=kills, row=row, seed=0, inferences=100_000)
    names = [name for name in given.parts if name in COMMANDS]
    found, rng = 0, np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder)
        save_model_files("tiny_resnet", inputs / "model.xml")
        write_problem(build_problem("llama-block"), inputs / "problem.json")
        for number, name in enumerate(names):
            share = given.kills * (number + 1) // len(names) - given.kills * number // len(names)
            found += survived(name, inputs, share, given.row, rng)
    if names:
        print(f"{found} of {given.kills} kills survived")
    endures = endured(given.inferences) if "executor" in given.parts else True
    return 0 if endures and (found == given.kills or not names) else 1


if __name__ == "__main__":
    sys.exit(main())
