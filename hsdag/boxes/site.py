"""Site: all that another machine needs to measure candidates of a search, the model's files among it."""

from __future__ import annotations

import glob
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from hsdag.evaluators.bench import Bench, Objection
from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.ir.processes import Request, WorkerClient
from hsdag.runtime.measuring.candidate import CandidateRunner, Limits
from hsdag.runtime.measuring.messages import WorkerSetup, worker_client
from hsdag.runtime.problems.objectives import Objective

COMMAND = (sys.executable, "-m", "hsdag.boxes.worker")

Judge: TypeAlias = Callable[[CandidateRunner], Objection]
"""Makes what judges the outputs of candidates that a runner has opened."""


@dataclass(frozen=True)
class Packed(Request[None]):
    """``WorkerSetup`` with the contents of the files that it names: those of the model by their names, and inputs."""

    setup: WorkerSetup
    files: Mapping[str, bytes] = field(repr=False)
    inputs: bytes | None = field(repr=False)

    @staticmethod
    def of(setup: WorkerSetup) -> Packed:
        """Read the files."""
        inputs = None if setup.inputs is None else setup.inputs.read_bytes()
        folder = setup.model.parent
        files = {str(path.relative_to(folder)): path.read_bytes() for path in _parts(setup.model)}
        return Packed(replace(setup, model=Path(setup.model.name)), files, inputs)

    def unpacked(self, folder: Path) -> WorkerSetup:
        """The setup, with its files in a folder."""
        for name, content in self.files.items():
            path = folder / "model" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        given = None
        if self.inputs is not None:
            given = folder / "inputs.npz"
            given.write_bytes(self.inputs)
        return replace(self.setup, model=folder / "model" / self.setup.model, inputs=given)


@dataclass(frozen=True, eq=False)
class Site:
    """What is measured, how, and how long that may take; ``judge`` where outputs decide what is timed.

    The measuring process is started for the first candidate, and ends with the site.
    """

    packed: Packed
    objective: Objective
    limits: Limits
    measurement: SearchMeasurement
    judge: Judge | None = None

    @cached_property
    def client(self) -> WorkerClient:
        """Of the measuring process on this machine."""
        client = worker_client(self.packed, COMMAND)
        weakref.finalize(self, client.close)
        return client

    @cached_property
    def bench(self) -> Bench:
        """Measures on this machine."""
        runner = CandidateRunner(self.client, self.objective, self.limits, self.packed.setup.scenarios)
        return Bench(runner, self.measurement, None if self.judge is None else self.judge(runner))


def _parts(model: Path) -> list[Path]:
    """The files of a model: all of a folder, else the file and its weights, if they are apart."""
    if model.is_dir():
        return sorted(path for path in model.rglob("*") if path.is_file())
    beside = [model.with_suffix(".bin")] if model.suffix == ".xml" else [model.with_suffix(".pdiparams")]
    beside += sorted(model.parent.glob(f"{glob.escape(model.name)}[._]data"))
    return [model, *(path for path in beside if path.is_file() and path != model)]
