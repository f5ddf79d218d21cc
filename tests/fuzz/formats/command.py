"""Command lines: the arguments of every command, with files of all formats beside them.

Where a command would start to measure, or to train, its input has been read, and it is stopped.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from unittest.mock import patch

from hsdag.cli.app import USER_ERROR, run
from hsdag.ir.errors import HsdagError
from tests.fuzz.formats.base import HERE, READ, Files, Format
from tests.fuzz.mutations import WORDS

SLOW = ("--budget", "--expert", "--seeds", "--runs", "--time", "-t", "--for", "--moves")
"""Options whose large values are a user's wish, which takes as long as it says."""

_SHORT = ("0.1s", "0s", "-1s", "nan", "inf", "1e999s", "", "1x", "1", "0", "-1", "s", "é")
_OPTIONS = (
    "--json",
    "--help",
    "--seed",
    "-o",
    "--devices",
    "--shape",
    "--budget",
    "--method",
    "--nothing",
    "--",
    "-",
    "--=",
)
_VALUES = (
    *WORDS,
    *(
        "heft",
        "latency",
        "throughput",
        "energy",
        "latency=1,memory=0.5",
        "GPU.9",
        "A=CPU[X=",
        "A=CPU,A=CPU",
        "x[1,2]",
        "1x",
    ),
    *(
        "x=(",
        "CPU=1TB",
        "(=CPU",
        "*",
        "4294967296",
        "99999999999999999999",
        "model.xml",
        "problem.json",
        "absent",
        ".",
        "out",
    ),
)
_STARTS = (
    "hsdag.placing.session.worker_client",
    "hsdag.diagnosis.examination.worker_client",
    "hsdag.diagnosis.bisect.worker_client",
    "hsdag.training.train.run_train",
)


def _make(seed: Files, rng: Random) -> Files:
    """Words replaced, removed, doubled, swapped or added."""
    words: list[str] = json.loads(seed["arguments.json"])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, kind = rng.randrange(1, len(words) + 1), rng.randrange(8)
        if kind <= 3 and at < len(words):
            words[at] = rng.choice(_VALUES)
        elif kind == 4 and at < len(words):
            del words[at]
        elif kind == 5:
            words[at:at] = [rng.choice(_OPTIONS), rng.choice(_VALUES)]
        elif kind == 6:
            words.insert(at, rng.choice(_OPTIONS))
        else:
            other = rng.randrange(len(words))
            words[at - 1], words[other] = words[other], words[at - 1]
    for at, word in enumerate(words[:-1]):
        if word in SLOW:
            words[at + 1] = rng.choice(_SHORT)
    return {"arguments.json": json.dumps([word.replace("\0", "") for word in words]).encode()}


def _read(folder: Path) -> None:
    try:
        words = json.loads((folder / "arguments.json").read_text())
    except ValueError as error:  # what guided fuzzing has cut short
        raise HsdagError("no command line") from error
    with _workplace(folder), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = run(words)
    lines = said.getvalue().splitlines()
    if code == USER_ERROR:
        raise HsdagError(lines[-1] if lines else "")
    assert code == 0, f"ended with {code}: {lines[-1:]!r:.400}, {words!r:.300}"


@contextmanager
def _workplace(folder: Path) -> Iterator[None]:
    """A folder with files of all formats as the working folder, in which nothing is measured."""
    place = folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for seed in (
        "ir/branch",
        "problem/diamond",
        "placement/split",
        "platform/calibrated",
        "policy/doppler",
        "inputs/arrays",
    ):
        shutil.copytree(HERE / "seeds" / seed, place, dirs_exist_ok=True)
    shutil.copytree(HERE / "seeds/run/hetero", place / "search.run")
    shutil.copy(HERE / "seeds/placement/map/placement.json", place / "map.json")
    environment = {**os.environ, "HSDAG_CACHE_DIR": str(place / "cache")}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment))
        for start in _STARTS:
            stack.enter_context(patch(start, _stop))
        stack.enter_context(chdir(place))
        yield


def _stop(*_: Any, **__: Any) -> NoReturn:
    raise HsdagError(READ)


FORMAT = Format(_read, _make)
