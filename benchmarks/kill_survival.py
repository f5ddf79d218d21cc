"""Whether place, profile, solve and train survive SIGKILL at random moments, several times in a row.

The moments are drawn over the time that an undisturbed command takes. A kill is survived if every file can be read, if
nothing that was on disk is lost or made again, and if the command ends with an answer after the last kill of a row:

- place: the events on disk stay as they are, and no placement is measured twice. It goes on with --resume.
- profile: what was measured of a device, or between devices, stays in the cache, byte for byte.
- solve: no later plan is worse than the one that was on disk. It goes on with --start and the file of --output.
- train: no update that was stored is lost, and the policy is the one of an undisturbed training. It goes on with
  --resume.

Usage: python benchmarks/kill_survival.py [--kills 200] [--commands place,profile,solve,train] [--row 4] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from safetensors.numpy import load_file

import hsdag
from hsdag.models import save_model_files
from hsdag.runtime.problem.problem_file import read_problem, write_problem
from hsdag.scoring.policy_file import StateFile
from hsdag.sources import build_problem

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
END_LIMIT_S = 600.0
"""A command that is left alone has to end by then."""


class Lost(Exception):  # noqa: N818 - the outcome of a trial
    """What a kill has cost."""


class Trial(ABC):
    """A command in a folder of its own, killed again and again until it is let go on to its end."""

    def __init__(self, inputs: Path, folder: Path) -> None:
        self.inputs, self.folder = inputs, folder
        self.kept: Any = None  # what lay on disk after the kill before
        folder.mkdir()

    @abstractmethod
    def arguments(self) -> list[str]:
        """The command line, which goes on where there is something to go on with."""

    @abstractmethod
    def check(self) -> None:
        """Compare what lies on disk with what lay there after the kill before. Raises Lost."""

    @abstractmethod
    def answer(self) -> None:
        """Check the answer. Raises Lost."""

    def begin(self) -> subprocess.Popen[str]:
        """Start the command; return at its first message."""
        environment = os.environ | {"HSDAG_CACHE_DIR": str(self.cache)}
        command = [sys.executable, "-m", "hsdag", *self.arguments()]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert process.stderr is not None
        self.messages = [process.stderr.readline()]
        errors = process.stderr
        threading.Thread(target=lambda: self.messages.extend(errors), daemon=True).start()
        return process

    @property
    def cache(self) -> Path:
        """The cache folder, which trials share where it is not what they are about."""
        return self.inputs / "cache"

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


def whole_lines(path: Path) -> list[str]:
    """Lines of a file but for a last one that has no end, which is dropped when a search goes on."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


class Place(Trial):
    """A search that measures; ``kept`` are its events."""

    def arguments(self) -> list[str]:
        goes_on = ["--resume"] if (self.folder / "out.run").exists() else []
        asked = [
            "--devices",
            DEVICES,
            "--budget",
            "12s",
            "--max-evaluations",
            "12",
            "-o",
            str(self.folder / "out.json"),
        ]
        return ["place", str(self.inputs / "model.xml"), *asked, *goes_on]

    def check(self) -> None:
        events, before = whole_lines(self.folder / "out.run" / "events.jsonl"), self.kept or []
        if events[: len(before)] != before:
            raise Lost(f"of {len(before)} events not all are left")
        placements = [json.loads(line)["placement"] for line in events]
        if len(set(placements)) < len(placements):
            raise Lost("a placement was measured twice")
        self.kept = events

    def answer(self) -> None:
        latency = hsdag.Placement.load(self.folder / "out.json").latency
        if latency is None or not latency.measured:
            raise Lost("the placement was not measured")


class Profile(Trial):
    """Times of two devices, of going between them, and of six cuts; ``kept`` are the entries of the cache."""

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def arguments(self) -> list[str]:
        model, costs = str(self.inputs / "model.xml"), str(self.folder / "costs.json")
        return ["profile", model, "--devices", DEVICES, "-o", costs]

    def check(self) -> None:
        found = {path.name: path.read_bytes() for path in (self.cache / "profiles").glob("*.json")}
        if any(found.get(name) != content for name, content in (self.kept or {}).items()):
            raise Lost("an entry of the cache is lost, or was measured again")
        self.kept = found

    def answer(self) -> None:
        read_problem(self.folder / "costs.json")


class Solve(Trial):
    """A search that simulates; ``kept`` is the best value that was on disk."""

    def arguments(self) -> list[str]:
        plan = self.folder / "plan.json"
        goes_on = ["--start", str(plan)] if plan.exists() else []
        problem = str(self.inputs / "problem.json")
        return ["solve", problem, "--method", "sa", "--budget", "6s", "-o", str(plan), *goes_on]

    def check(self) -> None:
        if (self.folder / "plan.json").exists():
            found_s = hsdag.simulate(self.inputs / "problem.json", self.folder / "plan.json").value_s
            if self.kept is not None and found_s > self.kept * (1 + 1e-9):
                raise Lost(f"the plan takes {found_s:g} s, and one that was on disk {self.kept:g} s")
            self.kept = found_s

    def answer(self) -> None:
        if self.kept is None:
            raise Lost("there is no plan")


class Train(Trial):
    """A training of rules, which an undisturbed one is compared with; ``kept`` counts its updates."""

    expected: dict[str, np.ndarray] | None = None

    def arguments(self) -> list[str]:
        policy = self.folder / "policy.safetensors"
        goes_on = ["--resume"] if policy.with_suffix(".state").exists() else []
        size = ["--problems", "4", "--updates", "150", "--expert-evaluations", "2000", "--unseen", "2"]
        return ["train", "enas", *size, "-o", str(policy), *goes_on]

    def check(self) -> None:
        stored = StateFile(self.folder / "policy.state").load()
        if stored is not None:
            if stored[1]["done"] < (self.kept or 0):
                raise Lost(f"of {self.kept} updates {stored[1]['done']} are left")
            self.kept = stored[1]["done"]
        elif (self.folder / "policy.safetensors").exists():  # it was killed when all was done
            self.answer()
            self.kept = 0

    def answer(self) -> None:
        weights = load_file(self.folder / "policy.safetensors")
        if Train.expected is None:
            Train.expected = weights
        if any(not np.array_equal(weights[name], array) for name, array in Train.expected.items()):
            raise Lost("the policy differs from that of an undisturbed training")


TRIALS: dict[str, type[Trial]] = {"place": Place, "profile": Profile, "solve": Solve, "train": Train}


def ran(trial: Trial, moment_s: float | None = None) -> float | None:
    """Run a command and kill it so long after its first message; seconds that it took, None where it was killed.

    Without a moment it goes on to its end, and its answer is checked. Raises Lost.
    """
    process, begin_s = trial.begin(), time.monotonic()
    try:
        code = process.wait(END_LIMIT_S if moment_s is None else moment_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.wait()
        if moment_s is None:
            raise Lost(f"it did not end within {END_LIMIT_S:.0f} s") from error
        trial.read_all()
        trial.check()
        return None
    took_s = time.monotonic() - begin_s
    if code:
        raise Lost(f"it ended with exit code {code}: {trial.messages[-1].strip()}")
    if moment_s is None:
        trial.read_all()
        trial.check()
        trial.answer()
    return took_s


def survived(name: str, inputs: Path, kills: int, row: int, rng: np.random.Generator) -> int:
    """How many kills of a command were survived."""
    folder, found = inputs / name, 0
    folder.mkdir()
    times_s = [ran(TRIALS[name](inputs, folder / which)) for which in ("warm", "undisturbed")]  # the first compiles
    whole_s = min(taken_s for taken_s in times_s if taken_s is not None)
    print(f"{name}: {whole_s:.1f} s when nothing disturbs it", flush=True)
    done = number = 0
    while done < kills:
        trial, in_row, number = TRIALS[name](inputs, folder / str(number)), 0, number + 1
        try:
            while in_row < min(row, kills - done) and ran(trial, float(rng.uniform(0, whole_s))) is None:
                in_row += 1
            ran(trial)
            found += in_row
        except Lost as lost:
            print(f"{name}, after {in_row} kills: {lost}", flush=True)
            in_row = max(in_row, 1)
        done += in_row
        print(f"{name}: {found} of {done}", flush=True)
        shutil.rmtree(trial.folder)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="of all commands together")
    parser.add_argument("--commands", default=",".join(TRIALS))
    parser.add_argument("--row", type=int, default=4, help="kills before a command is let go on to its end")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = arguments.commands.split(",")
    print(machine())
    found, rng = 0, np.random.default_rng(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder)
        save_model_files("tiny_resnet", inputs / "model.xml")
        write_problem(build_problem("llama-block"), inputs / "problem.json")
        for number, name in enumerate(names):
            share = arguments.kills * (number + 1) // len(names) - arguments.kills * number // len(names)
            found += survived(name, inputs, share, arguments.row, rng)
    print(f"{found} of {arguments.kills} kills survived")
    return 0 if found == arguments.kills else 1


if __name__ == "__main__":
    sys.exit(main())
