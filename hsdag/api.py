"""The Python API: ``hsdag.place`` and ``hsdag.compile_work_conserving``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino as ov

from hsdag.commands.place import run_place
from hsdag.ir.placement import Placement
from hsdag.ir.reader import load_model, parse_shapes
from hsdag.runtime.measuring.references import parse_reference
from hsdag.runtime.problems.objectives import Objective, find_objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.search.driver import Watcher
from hsdag.search.options import PlaceOptions, parse_duration, parse_executor

if TYPE_CHECKING:
    from hsdag.runtime.openvino_backend import WorkConservingModel


def place(
    model: Any,
    devices: str | Sequence[str] | None = None,
    *,
    partition_cpu: int | None = None,
    method: str = "hsdag",
    preset: str = "default",
    reward: str | None = None,
    objective: str | Objective = LATENCY,
    executor: str = "hetero",
    budget: str | float = "60s",
    seed: int = 0,
    reference: str = "cpu",
    tolerance: float | None = None,
    shape: str | Mapping[str, tuple[int, ...]] | None = None,
    example_input: Any = None,
    run_folder: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Placement:
    """Find a placement of a model and prove it by measurement; what ``hsdag place`` does.

    ``model`` is a path, an ``ov.Model`` or a torch module, which takes an ``example_input``; ``devices`` and
    ``shape`` are written as at the command line; ``executor``, ``"hetero"`` or ``"work-conserving"``, is what runs the
    placed model; ``reference``, ``"cpu"``, ``"op-by-op"`` or ``"onnxruntime"``, is what outputs are compared with, and
    ``tolerance`` how far they may be from it, over the largest magnitude; ``budget`` is a duration such as ``"60s"`` or
    seconds. With ``run_folder`` the search is kept on disk and ``resume`` goes on with it. The answer is never slower
    than the best single device beyond the 95% interval.

    Raises a ``hsdag.ir.HsdagError`` for what the caller can put right.
    """
    options = PlaceOptions(
        devices=devices if devices is None or isinstance(devices, str) else ",".join(devices),
        partition_cpu=partition_cpu,
        method=method,
        preset=preset,
        reward=reward,
        executor=parse_executor(executor),
        objective=objective if isinstance(objective, Objective) else find_objective(objective),
        budget_s=parse_duration(budget) if isinstance(budget, str) else float(budget),
        seed=seed,
        reference=parse_reference(reference, Path(model) if isinstance(model, str | Path) else None),
        tolerance=tolerance,
        shapes=parse_shapes(shape) if isinstance(shape, str) else dict(shape or {}),
    )
    source = model if isinstance(model, str | Path) else load_model(model, options.shapes, example_input=example_input)
    folder = Path(run_folder) if run_folder is not None else None
    return run_place(source, options, run_folder=folder, resume=resume, watcher=watcher).placement


def compile_work_conserving(
    model: Any,
    placement: Placement,
    core: Any = None,
    properties: Mapping[str, Any] | None = None,
    *,
    time_limit_s: float | None = None,
) -> WorkConservingModel:
    """Compile a placed model so that its devices run side by side; used like an ``ov.CompiledModel``.

    ``model`` is a path, or an ``ov.Model``, which is not changed; inputs without a fixed shape get the one that the
    placement was made with. HETERO runs the parts of a model one after another;
    here each runs as soon as what it reads is there and its device is free. An inference that takes longer than
    ``time_limit_s`` ends with an ExecutionError that names the op and the device it waited for.

    Raises PlacementError when the placement is for another model, DeviceError when a device is absent or does not
    compile its part, and ModelError for models with state or without fixed shapes.
    """
    from hsdag.runtime.openvino_backend import CutOptions
    from hsdag.runtime.openvino_backend.placed import compile_placed

    source = model if isinstance(model, ov.Model) else load_model(model, spare=placement.model.input_shapes)
    options = CutOptions(limit_s=time_limit_s, objective=find_objective(placement.objective))
    return compile_placed(source, placement, core=core, properties=properties, options=options)
