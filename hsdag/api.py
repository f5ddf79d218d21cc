"""The Python API: ``hsdag.place``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hsdag.ir.placement import Placement
from hsdag.ir.reader import load_model, parse_shapes
from hsdag.runtime.problem import Objective
from hsdag.search.options import PlaceOptions, parse_duration, parse_objective
from hsdag.search.place import run_place
from hsdag.search.searching import Watcher


def place(
    model: Any,
    devices: str | Sequence[str] | None = None,
    *,
    partition_cpu: int | None = None,
    method: str = "hsdag",
    preset: str = "default",
    reward: str | None = None,
    objective: str | Objective = Objective.LATENCY,
    budget: str | float = "60s",
    seed: int = 0,
    shape: str | Mapping[str, tuple[int, ...]] | None = None,
    example_input: Any = None,
    run_folder: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Placement:
    """Find a placement of a model and prove it by measurement; what ``hsdag place`` does.

    ``model`` is a path, an ``ov.Model`` or a torch module, which takes an ``example_input``; ``devices`` and
    ``shape`` are written as at the command line; ``budget`` is a duration such as ``"60s"`` or seconds. With
    ``run_folder`` the search is kept on disk and ``resume`` goes on with it. The answer is never slower than the
    best single device beyond the 95% interval.

    Raises a ``hsdag.ir.HsdagError`` for what the caller can put right.
    """
    options = PlaceOptions(
        devices=devices if devices is None or isinstance(devices, str) else ",".join(devices),
        partition_cpu=partition_cpu,
        method=method,
        preset=preset,
        reward=reward,
        objective=objective if isinstance(objective, Objective) else parse_objective(objective),
        budget_s=parse_duration(budget) if isinstance(budget, str) else float(budget),
        seed=seed,
        shapes=parse_shapes(shape) if isinstance(shape, str) else dict(shape or {}),
    )
    source = model if isinstance(model, str | Path) else load_model(model, options.shapes, example_input=example_input)
    folder = Path(run_folder) if run_folder is not None else None
    return run_place(source, options, run_folder=folder, resume=resume, watcher=watcher).placement
