"""Whether place gives the right answer in time on a machine that is busy at times, knows wrong figures, or is new.

- busy: a model over two halves of the CPU, while a process is busy for 3 s of every 9 that the check for other programs
  is not told of. Counts runs that timed a way to divide the model, and those whose answer is of the same class (a whole
  device, a part, a placement, shards or copies) as that of a run without the process, which finds kernels compiled as
  they do.
- cache: a wrong slow-down is written into the cache: 2.0, or none where devices slow each other down by more than 1.5.
  Counts runs that notice it and measure it again.
- budget: ten models with empty caches, compiled kernels included. Counts those that end within a tenth more than the
  budget, and prints what they say of what they left out.

Exit status 1 where a count falls short: of 20 runs 20 and 18, of 10 all.

Usage: python benchmarks/stranger.py [busy cache budget] [--runs 20] [--budget-s 30] [--model resnet50]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import options

from hsdag.commands.place.preparing import LOST
from hsdag.models import save_model_files
from hsdag.runtime.machine.devices import DEFAULT

BUSY_S, IDLE_S = 3.0, 6.0
"""Seconds for which the process is busy, and then is not, in turn."""

MODELS = {
    "resnet50": "",
    "inception_v3": "",
    "bert_base_uncased": "",
    "llama-decoder": "",
    "tiny_resnet": "",
    "tiny_inception": "",
    "tiny_bert": "",
    "tiny_llama": "",
    "stateful-llama-fp16": "--tokens 32,1+32@4",
    "stateful-moe-int8": "--tokens 32,1+32@4",
}

SPINNING = f"""
import time
while True:
    end = time.monotonic() + {BUSY_S}
    while time.monotonic() < end: pass
    time.sleep({IDLE_S})
"""

UNAWARE = """
from hsdag.runtime.machine.usable import OtherPrograms
OtherPrograms.share = lambda self: 0.0
from hsdag.cli.app import main
main()
"""
"""The command line, which is not told of other programs."""

CREDULOUS = f"""
from hsdag.runtime.measuring.windows import Series
Series.is_agreed = property(lambda self: len(self.windows) >= 3)
{UNAWARE}"""
"""The same, which keeps the least of three windows, whether they agree or not."""

MANY = 1.5
"""Slow-downs beyond it are not told from 2.0."""

LEFT_OUT = re.compile(r"left|skipped|too few|too slow|not decided|more than the budget|do not agree", re.IGNORECASE)


@dataclass(frozen=True)
class Run:
    """What a run of place took, answered and said."""

    taken_s: float
    answer: dict[str, Any]
    said: str

    @property
    def kinds(self) -> set[str]:
        """Classes of all that were timed, in the comparison or before the search."""
        timed = {*self.answer.get("kinds", {}), *(row["name"] for row in self.answer.get("rows", ()))}
        return {kind_of(name) for name in timed} | ({"shards"} if LOST in self.said else set())

    @property
    def kind(self) -> str:
        """The class of the answer, or that there is none."""
        return next((kind_of(row["name"]) for row in self.answer.get("rows", ()) if row["is_answer"]), "none")


def kind_of(name: str) -> str:
    """Whole devices under any settings, parts of them, and placements, shards and copies of any number."""
    name = (name.partition(":")[2] or name).removesuffix(DEFAULT)
    return "part" if re.fullmatch(r"CPU_\d+", name) else re.sub(r" \d+$", "", name)


def placed(model: Path, budget_s: float, caches: Path, more: Sequence[str] = (), code: str = UNAWARE) -> Run:
    """Place a model over two halves of the CPU in a new process, with caches in a folder."""
    folders = dict.fromkeys(("HSDAG_CACHE_DIR", "XDG_CACHE_HOME"), str(caches))
    asked = ["place", str(model), "--partition-cpu", "2", "--budget", f"{budget_s:g}s", "--json", *more]
    asked += ["--output", str(caches / "placement.json")]
    begin_s = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", code, *asked],
        env={**os.environ, "NUMBA_CACHE_DIR": str(caches / "kernels"), **folders},
        capture_output=True,
        text=True,
        check=False,
    )
    taken_s = time.monotonic() - begin_s
    answer = json.loads(ran.stdout) if ran.returncode == 0 else {}
    return Run(taken_s, answer, ran.stderr)


@contextmanager
def busy_at_times() -> Iterator[None]:
    """A process that is busy in windows."""
    process = subprocess.Popen([sys.executable, "-c", SPINNING])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def busy(model: Path, num: int, budget_s: float) -> bool:
    """Fresh runs beside the busy process."""
    with tempfile.TemporaryDirectory() as folder:
        _, idle = (placed(model, budget_s, Path(folder), ["--fresh"]) for _ in range(2))  # the first compiles kernels
        print(
            f"busy: without it {idle.kind} in {idle.taken_s:.0f} s; compared {', '.join(sorted(idle.kinds))}",
            flush=True,
        )
        runs = []
        with busy_at_times():
            for number in range(num):
                run = placed(model, budget_s, Path(folder), ["--fresh"])
                print(f"  {number + 1}: {run.kind} in {run.taken_s:.0f} s of {sorted(run.kinds)}", flush=True)
                runs.append(run)
    timed, alike = sum("shards" in run.kinds for run in runs), sum(run.kind == idle.kind for run in runs)
    print(f"busy: shards timed in {timed} of {num}, the same class of answer in {alike}")
    return timed == num and alike >= 0.9 * num


def slow_downs(caches: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The entries of slow-downs in a cache."""
    for path in (caches / "profiles").glob("*.json"):
        entry = json.loads(path.read_text())
        if entry["key"].get("what") == "side by side":
            yield path, entry


def cache(model: Path, num: int, budget_s: float) -> bool:
    """Runs with a wrong slow-down in the cache."""
    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        caches = Path(folder)
        placed(model, 3 * budget_s, caches, code=CREDULOUS)
        ((path, entry),) = slow_downs(caches)
        right = entry["value"]["figures"]
        largest = max(each or 0.0 for table in right for row in table for each in row)
        wrong = [[[each and (1.0 if largest > MANY else 2.0) for each in row] for row in table] for table in right]
        print(f"cache: {wrong} in place of {right}", flush=True)
        entry["value"]["figures"] = wrong
        for number in range(num):
            path.write_text(json.dumps(entry))
            run = placed(model, budget_s, caches)
            now = [each["value"]["figures"] for _, each in slow_downs(caches)]
            is_noticed = bool(run.answer) and wrong not in now
            noticed += is_noticed
            print(
                f"  {number + 1}: {'noticed' if is_noticed else 'not noticed'}; {now or 'nothing'} is kept", flush=True
            )
    print(f"cache: noticed in {noticed} of {num}")
    return noticed == num


def budget(folder: Path, names: Sequence[str], budget_s: float) -> bool:
    """Models on a machine that has nothing of them."""
    in_time = 0
    for name in names:
        (folder / name).mkdir()
        model = folder / name / f"{name}.xml"
        save_model_files(name, model)
        with tempfile.TemporaryDirectory() as caches:
            run = placed(model, budget_s, Path(caches), ["--fresh", *MODELS.get(name, "").split()])
        in_time += run.taken_s <= 1.1 * budget_s and bool(run.answer)
        told = [line.strip() for line in run.said.splitlines() if LEFT_OUT.search(line)]
        print(f"  {name}: {run.taken_s:.1f} s, {run.kind}; {told[-1] if told else run.said[-200:]!r}", flush=True)
    print(f"budget: {in_time} of {len(names)} within {1.1 * budget_s:.0f} s")
    return in_time == len(names)


def main() -> None:
    """Run the parts that are asked for."""
    given = options(
        __doc__,
        ("busy", "cache", "budget"),
        runs=(20, "of busy; half as many of cache"),
        budget_s=(30.0, "of each run"),
        model=("resnet50", "of busy and cache"),
        models=(list(MODELS), "of budget"),
    )
    is_right = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / f"{given.model}.xml"
        save_model_files(given.model, model)
        if "busy" in given.parts:
            is_right &= busy(model, given.runs, given.budget_s)
        if "cache" in given.parts:
            is_right &= cache(model, max(given.runs // 2, 1), given.budget_s)
        if "budget" in given.parts:
            is_right &= budget(folder, given.models, given.budget_s)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
