"""Offer the functions of the library to Python programs and to the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsdag.base.errors import checked, option
from hsdag.runtime.objectives import Objective, find_objective

if TYPE_CHECKING:  # functions import what they use, so that running a placement loads no solver, torch or compiler
    from openvino import Core

    from hsdag.commands.compare import Comparison
    from hsdag.commands.place.result import PlaceResult
    from hsdag.exports.base import ExportResult
    from hsdag.ir.placement.placement import Placement
    from hsdag.runtime.executor.requests import WorkConservingModel
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem
    from hsdag.search.driver import Watcher
    from hsdag.search.simulate import SimulateResult
    from hsdag.search.solution import SolveResult


_NOT_REPEATED = ("model", "example_input", "run_folder", "resume", "watcher", "progress")
"""Parameters of ``place`` that a repeated command leaves out, or gives anew."""


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
    """Find a placement of a model and verify it by measurement, as ``hsdag place`` does.

    The placement found replaces ``start`` and the best single device only if the 95% intervals say that it is faster
    than both; devices and placements that exceed a limit do not compete. Raises a ``hsdag.HsdagError`` for what the
    caller can correct.

    Args:
        model: Path, ``ov.Model``, or torch module with an ``example_input``; with the executor "cuda", whose devices
            are torch's, also a ``Workload`` or its name.
        devices: Names as at the command line, for example ``"CPU,GPU.0"``; by default all devices.
        partition_cpu: Number of devices into which the CPU is divided.
        settings: Hyper-parameters of the method by name, or texts ``"NAME=VALUE"``.
        init: Policy file of ``hsdag train`` for the method, for ``auto`` one of ``rules``; ``"shipped"`` for the one
            that comes with hsdag.
        start: Placement from which the search starts, for example the one in use.
        budget: Time limit of the whole search, loading included: seconds, or a text such as ``"5m"``.
        max_evaluations: Stop after measuring this many placements.
        candidate_limit: Time limit for measuring one placement, written like ``budget``.
        workers: Other processes that share the search: ``"local:N"``, ``"ray"`` or ``"ray://HOST:PORT"``.
        max_difference: Largest allowed difference of outputs from those of ``reference``, relative to the largest
            value of the reference.
        inputs: An .npz file with one array for each input; by default inputs are random.
        memory: Memory limit of devices, in bytes or as a text: ``"GPU.0=8GB,GPU.1=512MiB"``.
        pins: Texts ``"REGEX=DEVICE"``: ops whose whole name matches stay on that device.
        run_folder: Folder that keeps the search; ``resume`` continues the search in it.
        output: File to which the placement is written.
        progress: Called with a line for each step, and with the best value so far as plans are evaluated.

    Examples:
        >>> import hsdag, openvino as ov
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.relu(x)], [x], "small")
        >>> result = hsdag.place(model, "CPU", budget="1s")
        >>> result.placement.used_devices
        ('CPU',)
    """
    parameters = dict(locals())
    begin_s = time.monotonic()  # loading libraries is part of the budget
    from hsdag.commands.place.load_placement import load_placement
    from hsdag.commands.place.place import run_place
    from hsdag.ir.graph.reader import CHAT_TOKENS, is_generating, load_model, network_in
    from hsdag.ir.graph.scenario import parse_scenarios
    from hsdag.models import Workload
    from hsdag.search.options import PlaceOptions, command_words

    heard = _watched(watcher, progress, find_objective(objective))
    is_folder = isinstance(model, str | Path) and network_in(Path(model)) != Path(model)
    if is_folder and not (data_shape or tokens or shape) and is_generating(load_model(model, dynamic=True)):
        parameters["tokens"] = tokens = CHAT_TOKENS
        heard.on_step(f"The model generates text: it is placed for {option('tokens')} {tokens}.")
    defaults = {name: param.default for name, param in signature(place).parameters.items() if name not in _NOT_REPEATED}
    options = PlaceOptions.of(
        parameters
        | {
            "arguments": command_words({name: parameters[name] for name in defaults}, defaults),
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
    """Search for a placement of a problem, as ``hsdag solve`` does; all figures are simulated.

    Raises a ``hsdag.HsdagError`` for what the caller can correct: a wrong argument before anything is evaluated, and
    after a search that found no legal placement.

    Args:
        problem: A problem, or the path of a problem file.
        settings: Hyper-parameters of the method by name, or texts ``"NAME=VALUE"``.
        init: Policy file of ``hsdag train`` for the method, for ``auto`` one of ``rules``; ``"shipped"`` for the one
            that comes with hsdag.
        start: Placement from which the search starts, as ``simulate`` takes it; the answer is at least as good.
        budget: Time limit: seconds, or a text such as ``"5m"``.
        max_evaluations: Stop after evaluating this many placements.
        workers: Other processes that share the search: ``"local:N"``, ``"ray"`` or ``"ray://HOST:PORT"``.
        pins: Texts ``"REGEX=DEVICE"``: ops whose whole name matches stay on that device.
        memory: Memory limits that replace the problem's, in bytes or as a text: ``"gpu=8GB,cpu=512MiB"``.
        progress: Called with a line for each step, and with the best value so far as plans are evaluated.
        on_better: Called with the best answer so far when it has improved, at most once a second.

    Examples:
        >>> import hsdag
        >>> from hsdag.runtime.problem.schedule_problem import ScheduleProblem
        >>> seconds = [[1.0, 2.0], [4.0, 1.0], [1.0, 2.0]]  # of three ops on two devices
        >>> problem = ScheduleProblem.from_arrays(seconds, [(0, 1), (0, 2)], device_names=("gpu", "cpu"))
        >>> result = hsdag.solve(problem, budget="5s")
        >>> result.value, result.status.value, list(result.affinity.values())
        (2.0, 'optimal', ['gpu', 'cpu', 'gpu'])
    """
    parameters = dict(locals())
    from hsdag.search.options import SolveOptions
    from hsdag.search.simulate import parse_semantics, placed
    from hsdag.search.solve import solve as run_solve

    costs = _problem(problem)
    semantics = parse_semantics(execution, order, links, seed)
    begun = None if start is None else placed(start, costs, semantics.order)
    changes = _changes(method, settings, init)
    options = SolveOptions.of(parameters | {"changes": changes, "semantics": semantics, "start": begun})
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
    """Simulate a placement of a problem, as ``hsdag simulate`` does; all figures are simulated.

    Raises a ``hsdag.HsdagError`` for what the caller can correct.

    Args:
        problem: A problem, or the path of a problem file.
        placement: Device name for every op name, a ``Placement``, or the path of a file that holds either.
        order: Which ready op runs first; by default priority if the placement has priorities, otherwise fifo.
        seed: Seed of the order random.

    Examples:
        >>> import hsdag
        >>> from hsdag.runtime.problem.schedule_problem import ScheduleProblem
        >>> seconds = [[1.0, 2.0], [4.0, 1.0]]  # of two ops on two devices
        >>> problem = ScheduleProblem.from_arrays(seconds, [(0, 1)], op_names=("a", "b"), device_names=("gpu", "cpu"))
        >>> result = hsdag.simulate(problem, {"a": "gpu", "b": "cpu"})
        >>> result.value, result.busy_s, result.transfers
        (2.0, {'gpu': 1.0, 'cpu': 1.0}, 1)
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
    """Compile a model to run as its placement says, and return an object used like an ``ov.CompiledModel``.

    The placement says whether the model runs on one device, under OpenVINO's HETERO, under hsdag's own executor, or as
    several copies. Raises PlacementError if the placement is for another model or for the CUDA engine, DeviceError if a
    device is absent or does not compile its part, and ModelError if ``model`` cannot be read.

    Args:
        model: Path, or ``ov.Model``, which is not changed. Inputs without a fixed shape get the one they were placed
            with.
        placement: A placement, its file, or the result or run folder of a search.
        properties: OpenVINO properties for compiling, by name.

    Examples:
        >>> import hsdag, numpy, openvino as ov
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.relu(x)], [x], "small")
        >>> compiled = hsdag.compile_model(model, hsdag.place(model, "CPU", budget="1s"))
        >>> compiled([numpy.array([-1.0, 2.0], dtype=numpy.float32)])[0].tolist()
        [0.0, 2.0]
    """
    import openvino as ov

    from hsdag.commands.place.load_placement import load_placement

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
    """Compile a model so that its devices run in parallel, and return an object used like an ``ov.CompiledModel``.

    HETERO runs the parts of a model one after another; here each part runs as soon as its inputs have arrived and its
    device is free. Raises PlacementError if the placement is for another model, DeviceError if a device is absent or
    does not compile its part, and ModelError if ``model`` cannot be read.

    Args:
        model: Path, or ``ov.Model``, which is not changed. Inputs without a fixed shape get the one they were placed
            with.
        properties: OpenVINO properties for compiling, by name.
        time_limit_s: End a longer inference with an ExecutionError that names the op and device it waited for.

    Examples:
        >>> import hsdag, numpy, openvino as ov
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.negative(ov.opset13.relu(x))], [x], "small")
        >>> placement = hsdag.place(model, "CPU", budget="1s").placement
        >>> with hsdag.compile_work_conserving(model, placement) as compiled:
        ...     print(compiled([numpy.array([-1.0, 2.0], dtype=numpy.float32)])[0].tolist())
        [-0.0, -2.0]
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
    """Compare search methods on one problem, as ``hsdag compare`` does; all figures are simulated.

    Raises a ``hsdag.HsdagError`` for what the caller can correct.

    Args:
        source: A problem, its file, a workload such as ``"chainmm[devices=8]"``, or a model file, whose costs are those
            of ``platform``, or are profiled.
        methods: Names, or one text with commas; by default all methods.
        seeds: Number of searches with each method, with seeds 0, 1, ...
        budget: Time limit of each search: seconds, or a text such as ``"5m"``.
        max_evaluations: Stop each search after evaluating this many placements.
        platform: Name of a platform, or its .toml file.
        workers: Other processes that run the searches: ``"local:N"``, ``"ray"`` or ``"ray://HOST:PORT"``.
        output: File to which the comparison is written after every run; by default the resumed file.
        resume: File of an unfinished comparison, which is continued.
        progress: Called with a line for each step, and with the best value so far as plans are evaluated.

    Examples:
        >>> import hsdag
        >>> from hsdag.runtime.problem.schedule_problem import ScheduleProblem
        >>> seconds = [[1.0, 2.0], [4.0, 1.0], [1.0, 2.0]]  # of three ops on two devices
        >>> problem = ScheduleProblem.from_arrays(seconds, [(0, 1), (0, 2)])
        >>> comparison = hsdag.compare(problem, "heft,sa", seeds=1, budget="5s")
        >>> [(row.method, row.mean_s) for row in comparison.rows]
        [('heft', 2.0), ('sa', 2.0)]
    """
    from hsdag.commands.compare import Comparison, problem_called
    from hsdag.commands.compare import compare as run_compare
    from hsdag.search.options import SolveOptions
    from hsdag.search.simulate import parse_semantics

    parameters = {"objective": objective, "budget": budget, "max_evaluations": max_evaluations, "workers": workers}
    search = SolveOptions.of({**parameters, "semantics": parse_semantics(execution, order, links)})
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
    """Write a placement in a format for deployment, as ``hsdag export`` does.

    Raises a ``hsdag.HsdagError`` for what the caller can correct; an unknown format is answered with the choices.

    Args:
        placement: A placement, its file, or the result or run folder of a search.
        output: File to write; for the format openvino a new folder.
        model: Path or ``ov.Model``, which some formats contain and the others check; ``ort`` needs the path of an ONNX
            model.
        shape: Shapes of the model's inputs, if not those that it was placed with.

    Examples:
        >>> import hsdag, tempfile
        >>> from pathlib import Path
        >>> from hsdag.runtime.problem.schedule_problem import ScheduleProblem
        >>> problem = ScheduleProblem.from_arrays([[1.0, 2.0], [4.0, 1.0]], [(0, 1)], op_names=("a", "b"))
        >>> placement = hsdag.solve(problem, "heft").placement
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = hsdag.export(placement, "json", Path(folder) / "devices.json")
        ...     print(result.format, result.files[0].name)
        json devices.json
    """
    from hsdag.commands.place.load_placement import load_placement
    from hsdag.exports.base import ExportResult, ModelSource, export_placement, written_files
    from hsdag.ir.graph.reader import network_in

    out_path = Path(output)
    written_files(format, out_path)  # raises an error for a wrong output before the model is read
    loaded = load_placement(placement)
    notes: list[str] = []
    network = None if model is None else _loaded(model, loaded, shape)
    path = network_in(Path(model)) if isinstance(model, str | Path) else None
    files = export_placement(loaded, format, out_path, ModelSource(network, path, notes.append))
    return ExportResult(format=format, files=tuple(files), notes=tuple(notes))


def _loaded(model: Any, placement: Placement, shape: str | Mapping[str, Sequence[int]] | None = None) -> Any:
    """Return a placed model as an ``ov.Model``; inputs without a fixed shape get the one they were placed with."""
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
    """Return hyper-parameters as text by name; a policy file ``init`` is one of them."""
    from hsdag.methods.registry import begun_with, parse_changes

    named = settings if isinstance(settings, Mapping) else parse_changes(settings or ())
    changes = {name: str(value) for name, value in named.items()}
    return changes if init is None else begun_with(method, init, changes)


def _problem(problem: str | Path | ScheduleProblem) -> ScheduleProblem:
    from hsdag.runtime.problem.problem_file import read_problem

    return read_problem(Path(problem)) if isinstance(problem, str | Path) else problem
