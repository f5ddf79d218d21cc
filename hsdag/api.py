"""The Python API, which the command line calls too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsdag.ir.errors import checked
from hsdag.runtime.objectives import find_objective

if TYPE_CHECKING:  # functions import what they use, so that running a placement loads no solver, torch or compiler
    from openvino import Core

    from hsdag.comparing import Comparison
    from hsdag.exports.base import ExportResult
    from hsdag.ir.placement.placement import Placement
    from hsdag.placing.result import PlaceResult
    from hsdag.runtime.executor.requests import WorkConservingModel
    from hsdag.runtime.objectives import Objective
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem
    from hsdag.search.driver import Watcher
    from hsdag.search.simulate import SimulateResult
    from hsdag.search.solution import SolveResult


_UNSAID = ("model", "example_input", "run_folder", "resume", "watcher", "progress")
"""Parameters of ``place`` that commands like it leave out, or name anew."""


@checked
def place(
    model: Any,
    devices: str | Sequence[str] | None = None,
    *,
    partition_cpu: int | None = None,
    method: str = "auto",
    preset: str = "default",
    settings: Mapping[str, object] | Sequence[str] | None = None,
    init: str | Path | None = None,
    start: str | Path | Placement | PlaceResult | None = None,
    reward: str | None = None,
    objective: str = "latency",
    executor: str = "auto",
    budget: str | float = "60s",
    max_evaluations: int | None = None,
    candidate_limit: str | float = "120s",
    seed: int = 0,
    workers: str | None = None,
    reference: str = "cpu",
    max_difference: float | None = None,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    inputs: str | Path | None = None,
    data_shape: str | Sequence[str] = (),
    tokens: str | None = None,
    memory: str | Mapping[str, str | float] | None = None,
    pins: Sequence[str] = (),
    infer_precision: str | None = None,
    example_input: Any = None,
    fresh: bool = False,
    run_folder: str | Path | None = None,
    resume: bool = False,
    output: str | Path | None = None,
    watcher: Watcher | None = None,
    progress: Callable[[str], None] | None = None,
) -> PlaceResult:
    """Find a placement of a model and prove it by measurement; what ``hsdag place`` does.

    ``model`` is a path, an ``ov.Model`` or a torch module, which takes an ``example_input``, and for the executor
    "cuda", whose devices are torch's, also a ``Workload`` or the name of one. Options are written as at the command
    line; durations may be seconds, too. ``settings`` are hyper-parameters of the method by name, or texts such as
    ``"chains=2"``; ``init`` is a policy file of ``hsdag train``, for ``auto`` or the method whose policy it is;
    ``start`` is a placement to begin with, such as the one that serves at present; ``inputs`` is an .npz file with one
    array per input. With ``run_folder`` the search is kept on disk, and ``resume`` continues it. The placement is
    written to ``output``. ``progress`` hears, in a line each, what is done and the best so far. What was found is the
    answer only if the 95% interval says that it is faster than the start and than the best single device, of those that
    keep the limits.

    Raises a ``hsdag.HsdagError`` for what the caller can put right.
    """
    given = dict(locals())
    begin_s = time.monotonic()  # loading libraries is part of the budget
    from hsdag.ir.graph.reader import CHAT_TOKENS, is_generating, load_model, network_in
    from hsdag.ir.graph.scenario import parse_scenarios
    from hsdag.models import Workload
    from hsdag.placing.load_placement import load_placement
    from hsdag.placing.place import run_place
    from hsdag.search.options import PlaceOptions, command_words

    heard = _watched(watcher, progress, find_objective(objective))
    is_folder = isinstance(model, str | Path) and network_in(Path(model)) != Path(model)
    if is_folder and not (data_shape or tokens or shape) and is_generating(load_model(model, dynamic=True)):
        given["tokens"] = tokens = CHAT_TOKENS
        heard.on_step(f"The model generates text: it is placed for --tokens {tokens}.")
    defaults = {name: each.default for name, each in signature(place).parameters.items() if name not in _UNSAID}
    options = PlaceOptions.of(
        given
        | {
            "arguments": command_words({name: given[name] for name in defaults}, defaults),
            "changes": _changes(method, settings, init),
            "scenarios": parse_scenarios(data_shape, tokens),
            "start": None if start is None else load_placement(start),
        }
    )
    if not isinstance(model, str | Path | Workload):
        model = load_model(model, options.shapes, example_input=example_input, dynamic=bool(options.scenarios))
    folder = Path(run_folder) if run_folder is not None else None
    written = Path(output) if output is not None else None
    return run_place(model, options, run_folder=folder, resume=resume, output=written, watcher=heard, begin_s=begin_s)


@checked
def solve(
    problem: str | Path | ScheduleProblem,
    method: str = "auto",
    *,
    objective: str = "latency",
    execution: str = "work-conserving",
    order: str | None = None,
    links: str = "independent",
    preset: str = "default",
    settings: Mapping[str, object] | Sequence[str] | None = None,
    init: str | Path | None = None,
    start: str | Path | Mapping[str, str] | Placement | None = None,
    budget: str | float = "10s",
    max_evaluations: int | None = None,
    seed: int = 0,
    workers: str | None = None,
    pins: Sequence[str] = (),
    memory: str | Mapping[str, str | float] | None = None,
    watcher: Watcher | None = None,
    progress: Callable[[str], None] | None = None,
    on_better: Callable[[SolveResult], None] | None = None,
) -> SolveResult:
    """Search for a placement of a problem, a file or in memory; what ``hsdag solve`` does. Every figure is simulated.

    ``init`` is a policy file of ``hsdag train``, for ``auto`` or the method whose policy it is. ``start`` is a
    placement to begin with, as ``simulate`` takes them, which the answer is not worse than. ``pins`` and ``memory``, in
    place of the problem's own limits, are written as at the command line, and so are ``workers``, which search in other
    processes. ``progress`` hears, in a line each, what is done and the best so far; ``on_better``
    hears of the best so far, every second at most. Raises a ``hsdag.HsdagError`` for what the caller can put right,
    before anything is evaluated.
    """
    given = dict(locals())
    from hsdag.search.options import SolveOptions
    from hsdag.search.simulate import parse_semantics, placed
    from hsdag.search.solve import solve as run_solve

    costs = _problem(problem)
    semantics = parse_semantics(execution, order, links, seed)
    begun = None if start is None else placed(start, costs, semantics.order)
    changes = _changes(method, settings, init)
    options = SolveOptions.of(given | {"changes": changes, "semantics": semantics, "start": begun})
    return run_solve(costs, options.placer(), options, _watched(watcher, progress, options.objective), on_better)


@checked
def simulate(
    problem: str | Path | ScheduleProblem,
    placement: str | Path | Mapping[str, str] | Placement,
    *,
    execution: str = "work-conserving",
    order: str | None = None,
    links: str = "independent",
    objective: str = "latency",
    seed: int = 0,
) -> SimulateResult:
    """What a placement of a problem would take; what ``hsdag simulate`` does. Every figure is simulated.

    ``placement`` is a file, a device name for every op name, or a ``Placement``. Raises a ``hsdag.HsdagError`` for
    what the caller can put right.
    """
    from hsdag.search.simulate import parse_semantics, placed, simulate_placement

    semantics = parse_semantics(execution, order, links, seed)
    costs = _problem(problem)
    return simulate_placement(costs, placed(placement, costs, semantics.order), semantics, find_objective(objective))


@checked
def compile_model(
    model: Any,
    placement: str | Path | Placement | PlaceResult,
    core: Core | None = None,
    properties: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a placed model to run as its placement says; the result is used like an ``ov.CompiledModel``.

    That is under OpenVINO's HETERO, on one device, under hsdag's own executor, or as copies of the whole model, beside
    pipelines under either executor.
    ``model`` is a path, or an ``ov.Model``, which is not changed; inputs without a fixed shape get the one that the
    placement was made with. That is a file, a run folder, or in memory.

    Raises PlacementError when the placement is for another model or for the CUDA engine, DeviceError when a device is
    absent or does not compile its part, and ModelError where ``model`` cannot be read.
    """
    import openvino as ov

    from hsdag.placing.load_placement import load_placement

    placement = load_placement(placement)
    if placement.executor == "work-conserving" and not placement.copies:
        return compile_work_conserving(model, placement, core, properties)
    return placement.compile(core or ov.Core(), _loaded(model, placement), properties, compile_work_conserving)


@checked
def compile_work_conserving(
    model: Any,
    placement: Placement,
    core: Core | None = None,
    properties: Mapping[str, Any] | None = None,
    *,
    time_limit_s: float | None = None,
) -> WorkConservingModel:
    """Compile a placed model so that its devices run side by side; used like an ``ov.CompiledModel``.

    ``model`` is a path, or an ``ov.Model``, which is not changed; inputs without a fixed shape get the one that the
    placement was made with. HETERO runs the submodels of a model one after another; here each part runs as soon as
    its inputs are there and its device is free. An inference that takes longer than ``time_limit_s`` ends with an
    ExecutionError that names the op and the device it waited for.

    Raises PlacementError when the placement is for another model, DeviceError when a device is absent or does not
    compile its part, and ModelError where ``model`` cannot be read.
    """
    from hsdag.runtime.executor.compiling import compile_placed

    source = _loaded(model, placement)
    by_load = find_objective(placement.objective).is_steady
    return compile_placed(source, placement, core=core, properties=properties, by_load=by_load, limit_s=time_limit_s)


@checked
def compare(
    source: str | Path | ScheduleProblem,
    methods: str | Sequence[str] = (),
    *,
    seeds: int = 5,
    objective: str = "latency",
    execution: str = "work-conserving",
    order: str | None = None,
    links: str = "independent",
    budget: str | float = "10s",
    max_evaluations: int | None = None,
    platform: str | None = None,
    devices: str | None = None,
    partition_cpu: int | None = None,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    data_shape: str | Sequence[str] = (),
    tokens: str | None = None,
    workers: str | None = None,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    watcher: Watcher | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare search methods, all that there are by default, on one problem; what ``hsdag compare`` does.

    ``source`` is a problem, its file, a workload, such as ``"chainmm[devices=8]"``, or a model's file, whose costs are
    a ``platform``'s or profiled. Every figure is simulated. The comparison is written to
    ``output`` after every run; ``resume`` goes on with such a file.

    Raises a ``hsdag.HsdagError`` for what the caller can put right.
    """
    from hsdag.comparing import Comparison, problem_called
    from hsdag.comparing import compare as run_compare
    from hsdag.search.options import SolveOptions
    from hsdag.search.simulate import parse_semantics

    given = {"objective": objective, "budget": budget, "max_evaluations": max_evaluations, "workers": workers}
    search = SolveOptions.of({**given, "semantics": parse_semantics(execution, order, links)})
    named = tuple(name.strip() for name in (methods.split(",") if isinstance(methods, str) else methods))
    past = None if resume is None else Comparison.load(Path(resume))
    written = output or resume
    heard = _watched(watcher, progress, search.objective)
    if isinstance(source, str | Path):
        source = problem_called(
            str(source),
            platform,
            devices=devices,
            partition_cpu=partition_cpu,
            shape=shape,
            data_shape=data_shape,
            tokens=tokens,
            on_step=heard.on_step,
        )
    return run_compare(
        source, search, named, seeds, watcher=heard, past=past, output=None if written is None else Path(written)
    )


@checked
def export(
    placement: str | Path | Placement | PlaceResult,
    format: str,  # noqa: A002 - as the command line calls it
    output: str | Path,
    model: Any = None,
    *,
    shape: str | Mapping[str, Sequence[int]] | None = None,
) -> ExportResult:
    """Write a placement as a deployable artefact; what ``hsdag export`` does.

    ``placement`` is one, its file, or the result or the run folder of a search. Some formats need the placed ``model``,
    a path or an ``ov.Model``; ``ort`` needs the path of an ONNX model. Raises a ``hsdag.HsdagError`` for what the
    caller can put right.
    """
    from hsdag.exports.base import ExportResult, export_placement, written_files
    from hsdag.ir.graph.reader import network_in
    from hsdag.placing.load_placement import load_placement

    written_files(format, Path(output))  # which refuses what could not be written, before the model is read
    loaded = load_placement(placement)
    notes: list[str] = []
    network = None if model is None else _loaded(model, loaded, shape)
    path = network_in(Path(model)) if isinstance(model, str | Path) else None
    files = export_placement(loaded, format, output, network, path=path, tell=notes.append)
    return ExportResult(format=format, files=tuple(files), notes=tuple(notes))


def _loaded(model: Any, placement: Placement, shape: str | Mapping[str, Sequence[int]] | None = None) -> Any:
    """A placed model as an ``ov.Model``, whose inputs without a fixed shape get those that it was placed with."""
    import openvino as ov

    from hsdag.ir.graph.reader import input_shapes, load_model

    if isinstance(model, ov.Model) and not shape:
        return model
    dynamic = placement.data_shapes is not None
    return load_model(model, input_shapes(shape), spare=placement.model.input_shapes, dynamic=dynamic)


def _watched(watcher: Watcher | None, progress: Callable[[str], None] | None, objective: Objective) -> Watcher:
    from hsdag.search.driver import Watcher

    if progress is None:
        return watcher or Watcher()
    tell = progress

    def on_event(_: Any, recorder: Any) -> None:
        if best := recorder.best():
            tell(f"{recorder.num_evaluations} placements, best {objective.text(best[0].score.value)}")

    return Watcher(on_phase=tell, on_event=on_event, on_step=tell)


def _changes(
    method: str, settings: Mapping[str, object] | Sequence[str] | None, init: str | Path | None
) -> dict[str, str]:
    """Hyper-parameters as text by name, of a mapping or of texts ``NAME=VALUE``, with the policy to begin with."""
    from hsdag.methods.registry import begun_with, parse_changes

    named = settings if isinstance(settings, Mapping) else parse_changes(settings or ())
    changes = {name: str(value) for name, value in named.items()}
    return changes if init is None else begun_with(method, init, changes)


def _problem(problem: str | Path | ScheduleProblem) -> ScheduleProblem:
    from hsdag.runtime.problem.problem_file import read_problem

    return read_problem(Path(problem)) if isinstance(problem, str | Path) else problem
