"""Session: a model, its devices and a worker, ready to be searched over or measured."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.drawing import in_bytes
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError, PlacementError, SearchError, check_seed
from hsdag.ir.graph.colocation import floating_ops, half_constants, widened
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray
from hsdag.ir.graph.reader import Shapes
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.placement.divided import regions_of
from hsdag.ir.placement.placement import ExecutorName, ModelRecord, Placement
from hsdag.ir.processes import COMPILING_LIMIT_S, CandidateFailed, process_command
from hsdag.placing.loaded_model import PlacedModel, read_for_torch, read_model
from hsdag.runtime.machine.devices import DeviceSet, canonical, cpu_topology, reduced_precision
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.messages import WORKER_COMMAND, Candidate, WorkerSetup, ask, worker_client
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.profiler import Effort, Profiler
from hsdag.runtime.measuring.runner import ASKING_LIMIT_S, CandidateRunner, Limits, unsupported_ops
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.objectives import LATENCY, Objective, find_objective
from hsdag.runtime.problem.pins import Pin, pinned_devices
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.timeline import OpIntervals, Timeline, TransferIntervals
from hsdag.scoring.measured import candidate_of
from hsdag.scoring.memory import MemoryCheck
from hsdag.scoring.schedule import model_values

SCHEDULING = (
    *("AFFINITY", "ENABLE_CPU_PINNING", "ENABLE_HYPER_THREADING", "EXCLUSIVE_ASYNC_REQUESTS", "INFERENCE_NUM_THREADS"),
    *("NUM_STREAMS", "SCHEDULING_CORE_TYPE"),
)
"""Properties that say when and where ops run: two devices that differ in nothing else run the same ops."""

TORCH_WORKER_COMMAND = process_command("hsdag.scoring.torch_worker")


class Session(AbstractContextManager["Session"]):
    """The model read once here and once in the worker. Use as a context manager, which ends the worker.

    ``source`` is a path, an ``ov.Model`` or a torch module; what is not a file is written to a temporary IR, so that
    both number ops equally. For the executor "cuda", whose ``devices`` are torch's, it may be a workload, too.
    ``shapes`` fixes inputs, ``spare`` those that are dynamic otherwise. With ``scenarios`` inputs may stay dynamic:
    these are what the model is profiled and measured on, and ``graph`` has their sizes. What is ``until_end`` is closed
    when the session ends. ``memory_bytes`` are limits by device; ``pins`` hold ops on devices that are placed on. The
    worker compiles kernels for ``kernels_s`` at most. Raises ModelError and DeviceError as reading and loading do,
    OptionError for a limit of a device that is not there, for pins that cannot be kept, and for scenarios of the
    executor "cuda".
    """

    def __init__(
        self,
        source: Any,
        devices: DeviceSet,
        *,
        shapes: Shapes | None = None,
        spare: Shapes | None = None,
        seed: int = 0,
        inputs: Path | None = None,
        scenarios: Sequence[Scenario] = (),
        memory_bytes: Mapping[str, float] | None = None,
        pins: Sequence[Pin] = (),
        objective: Objective = LATENCY,
        candidate_limit_s: float = 120.0,
        executor: ExecutorName = "hetero",
        kernels_s: float = math.inf,
    ) -> None:
        check_seed(seed)
        if inputs is not None and not inputs.is_file():
            raise OptionError(f"no such file: {inputs}; --input takes an .npz file with one array per input")
        self.is_on_torch = executor == "cuda"
        self._limits = dict(memory_bytes or {})
        known = [spec.name for spec in devices.all]
        for limited in self._limits:
            if limited not in known:
                raise OptionError(f"--memory names device {limited!r}; the devices are {', '.join(known)}")
        self.until_end = ExitStack()
        self._unsupported: dict[tuple[str, str], IntArray] = {}
        with self.until_end:
            made = tempfile.TemporaryDirectory(prefix="hsdag-", ignore_cleanup_errors=True)  # of files that are mapped
            folder = Path(self.until_end.enter_context(made))
            if self.is_on_torch:
                self.loaded = read_for_torch(source, shapes, spare, folder, scenarios, len(devices.placed))
            else:
                self.loaded = read_model(source, shapes, spare, folder, scenarios)
            graph = self.loaded.graph
            names = known[: len(devices.placed)]
            held, room = float(graph.weight_bytes.sum()), sum(self._limits.get(name, np.inf) for name in names)
            if names and room < held:
                raise OptionError(
                    f"--memory allows {' and '.join(names)} {in_bytes(room)} together; they need at least "
                    f"{in_bytes(held)}"
                )
            pinned = pinned_devices(graph.op_names, pins, names, floating_ops(graph))
            self.scenarios = self.loaded.scenarios
            self._take(devices, objective, pinned)
            self.model_record = ModelRecord.of(self.graph, self.loaded.name)
            kinds = [self.model_record.fingerprint, *(each.text for each in self.scenarios)]
            self.digest = _digest(self.loaded.path, inputs, kinds)
            setup = WorkerSetup(
                self.loaded.path, devices.all, self.loaded.shapes, seed, inputs, self.scenarios, kernels_s
            )
            command = TORCH_WORKER_COMMAND if self.is_on_torch else WORKER_COMMAND
            self.client = self.until_end.enter_context(worker_client(setup, command))
            limits = Limits(compile_s=candidate_limit_s, run_s=max(candidate_limit_s / 2, 1.0))
            self.runner = CandidateRunner(self.client, objective, limits, self.scenarios)
            self.until_end = self.until_end.pop_all()

    def __exit__(self, *_: object) -> None:
        self.until_end.close()

    def _take(self, devices: DeviceSet, objective: Objective, pinned: IntArray) -> None:
        """Have the model placed on these devices, as it was read."""
        graph = self.loaded.graph
        in_half = not self.is_on_torch and bool(half_constants(graph).any())
        in_single = [in_half and not reduced_precision((spec,)) for spec in devices.placed]
        self.devices = devices
        self.in_single = np.array(in_single, dtype=np.bool_)  # [D] devices that hold halves as singles
        self.graph: ComputationGraph = widened(graph) if self.in_single.all() else graph
        self.widens = self.in_single & (not self.in_single.all())  # [D] the same, where graph has not counted it
        units, labels = self.loaded.units, self.loaded.labels
        self.model = PlacedModel(self.graph, devices.placed, objective, units, labels, pinned)

    def use(self, devices: DeviceSet) -> None:
        """Go on with other properties of the same devices, which run the same ops, and with other rivals."""
        for old, new in zip(self.devices.placed, devices.placed, strict=True):
            if (known := self._unsupported.get(_kind(old))) is not None:
                self._unsupported[_kind(new)] = known
        assert self.model.pinned is not None
        self._take(devices, self.model.objective, self.model.pinned)
        assert isinstance(self.client.setup, WorkerSetup)
        self.client.setup = replace(self.client.setup, devices=devices.all)
        self.client.restart()
        self.client.begin()

    def unsupported_ops(self, spec: DeviceSpec) -> IntArray:
        """Indices of the ops a device does not run; devices that run the same are asked once, since it takes as long
        as compiling. Raises DeviceError when it cannot be asked."""
        key = _kind(spec)
        if key not in self._unsupported:
            self._unsupported[key] = unsupported_ops(self.client, spec)
        return self._unsupported[key]

    def profile(
        self,
        cache: ProfileCache | None = None,
        effort: Effort | None = None,
        on_step: Callable[[str], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        on_note: Callable[[str], None] = lambda _: None,
        side_by_side: bool = False,
    ) -> ModelProfile:
        """Times of ops on ``devices.placed`` and of going between them, measured or from the cache.

        ``side_by_side`` adds how much devices slow each other down, which only what runs them at once must know.

        Raises DeviceError when a device cannot be profiled, an op runs on none of them, or ``should_stop`` says so.
        """
        problem = self.problem(is_free=True)
        first = problem.supported.argmax(axis=1)
        each = np.arange(problem.num_devices)
        carriers = np.where(problem.supported, each[None, :], first[:, None])[problem.units.partition.labels]
        kept = cache or ProfileCache.default()
        how: dict[str, Any] = {
            "effort": effort or Effort(),
            "on_step": on_step,
            "on_note": on_note,
            "should_stop": should_stop,
        }
        profiler = Profiler(self.client, self.graph, self.digest, kept, has_one_course=not self.scenarios, **how)
        whole_devices = whole_cpus(self.devices) if side_by_side and not self.is_on_torch else ()
        return profiler.profile(self.devices.placed, carriers, side_by_side=side_by_side, whole_devices=whole_devices)

    def problem(
        self, *, max_share: float | None = None, profile: ModelProfile | None = None, is_free: bool = False
    ) -> Problem:
        """The placement problem over ``devices.placed``; with a profile, fused ops stay together and costs are known.

        Units that hold a pinned op have its device alone, unless the problem ``is_free``. Raises DeviceError when an op
        runs on none of the devices, OptionError for pins that cannot be kept.
        """
        refused = tuple(self.unsupported_ops(spec) for spec in self.devices.placed)
        memory_bytes = None if profile is None else self.model.memory_bytes(profile, self._limits)
        model = replace(self.model, pinned=None) if is_free else self.model
        return model.problem(refused, profile, memory_bytes, max_share=max_share, by_op=self.is_on_torch)

    def memory_limits(self, profile: ModelProfile | None) -> dict[str, float]:
        """Bytes by device: what was asked for, else what the device has, where that is known."""
        known = () if profile is None else zip(profile.devices, profile.times, strict=True)
        found = {
            spec.name: times.memory_bytes for spec, times in known if times.memory_bytes is not None
        } | self._limits
        return found | {name: found[own] for name, own in self.devices.defaults.items() if own in found}

    def too_large(self, profile: ModelProfile | None) -> dict[str, str]:
        """Why devices do not hold the whole model, by name: its weights and state exceed their memory."""
        held = float(self.graph.weight_bytes.sum())
        return {
            name: f"the model's weights and state take {in_bytes(held)}, and it has {in_bytes(limit)}"
            for name, limit in self.memory_limits(profile).items()
            if held > limit
        }

    def of_units(self, problem: Problem, chosen: Sequence[str]) -> IntArray | None:
        """A device for every op [N], by OpenVINO's names, as a placement [U]; None where that is not legal.

        The heaviest op of a unit decides.
        """
        index = {spec.openvino_name: d for d, spec in enumerate(self.devices.placed)}
        placement = np.full(problem.num_units, -1, dtype=np.int64)
        for v in np.argsort(self.graph.flops, kind="stable").tolist():  # the heaviest op of a unit speaks last
            if chosen and chosen[v] in index:
                placement[problem.units.partition.labels[v]] = index[chosen[v]]
        return placement if (placement >= 0).all() and problem.is_legal(placement) else None

    def automatic_ops(self, target: str) -> list[str]:
        """[N] OpenVINO's own choice of device for every op, by its names; empty where it has none.

        HETERO gives an op to the first device that runs it, and is asked only where that is not the first of all.
        """
        first = target.removeprefix("HETERO:").partition(",")[0]
        if any(spec.openvino_name == first and not len(self.unsupported_ops(spec)) for spec in self.devices.placed):
            return [first] * self.graph.num_ops
        try:
            return self.client.call(ask(Worker.choices, target), ASKING_LIMIT_S, COMPILING_LIMIT_S)
        except CandidateFailed:
            return []

    def placed(self, problem: Problem, plan: Plan, executor: ExecutorName = "hetero") -> Candidate:
        """A plan as something to compile for an executor."""
        return candidate_of(problem, self.devices.placed, plan, executor)


def whole_cpus(devices: DeviceSet) -> tuple[DeviceSpec, ...]:
    """Return physical CPUs whose threads the devices that are placed on have among them, all of them."""
    shares = [int(spec.properties.get("INFERENCE_NUM_THREADS", 0)) for spec in devices.placed if spec.plugin == "CPU"]
    cpus = (spec for spec in devices.rivals if spec.plugin == "CPU" and spec.name not in devices.defaults)
    return tuple(cpus) if sum(shares) >= cpu_topology().threads else ()


def _kind(spec: DeviceSpec) -> tuple[str, str]:
    """What decides which ops a device runs."""
    return spec.plugin, str(sorted((k, v) for k, v in spec.properties.items() if k not in SCHEDULING))


def _digest(model: Path, inputs: Path | None, known: Sequence[str]) -> str:
    """What a model's times depend on beside the device.

    That is the file itself, without the weights of an IR, since a fingerprint knows neither bodies of If and Loop nor
    attributes; what is ``known``: the fingerprint, which has the fixed shapes, and the scenarios; and the inputs.
    """
    digest = hashlib.sha256("\n".join(known).encode())
    parts = sorted(path for path in model.rglob("*") if path.is_file()) if model.is_dir() else [model]
    for path in [*parts, *filter(None, [inputs])]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def normalize_objective(session: Session, problem: Problem, costs: PlacementCosts) -> Problem:
    """The problem with an objective that knows what the best single device has, which the session measures from now on.

    Peaks of memory are simulated by the problem, for whatever is measured too. Under HETERO's own costs methods compute
    times alone, so they do without these where memory counts.
    """
    objective = problem.objective

    def best_single(term: Objective) -> float:
        values = model_values(replace(problem, objective=term), costs, problem.alone)
        return float(np.min(values, initial=np.inf, where=np.isfinite(values)))

    found = replace(problem, objective=objective.scaled(best_single))
    session.model = replace(session.model, objective=found.objective)
    session.runner.objective = found.objective
    if objective.counts_memory:
        if problem.costs is None:
            raise OptionError(f"--objective {objective.name} needs a profile of the model, which there is none of")
        session.runner.peak_of = lambda candidate: peak_of(session, problem, candidate)
        found = replace(found, ops=None)
    return found


def peak_of(session: Session, problem: Problem, candidate: Candidate) -> float:
    """Bytes of the fullest device of a candidate at its fullest moment, simulated.

    A device that is not placed on peaks as any other one that has all ops does. Raises CandidateFailed where it is not
    known which op is where.
    """
    names = [spec.openvino_name for spec in session.devices.placed]
    able = np.flatnonzero(problem.supported.all(axis=0)).tolist()
    whole = [names.index(candidate.target)] if candidate.target in names else able
    units = None
    if candidate.devices is not None:
        units = session.of_units(problem, candidate.devices)
    elif candidate.target.startswith("HETERO:"):
        units = session.of_units(problem, session.automatic_ops(candidate.target))
    elif candidate.target in [spec.openvino_name for spec in session.devices.all] and whole:
        units = np.full(problem.num_units, whole[0])
    if units is None:
        raise CandidateFailed("its peak of memory is not known, since nothing says which op is where")
    return float(MemoryCheck(problem.known_costs, problem.semantics).peak_bytes(units).max())


def placed_candidate(session: Session, name: str, placement: Placement, executor: ExecutorName) -> Candidate:
    """A placement file as something to measure. Raises PlacementError when it is for another model."""
    names = {device.name: canonical(device).openvino_name for device in placement.devices}
    if placement.copies:
        placement.check_model(session.graph)
        each: list[tuple[str | Candidate, int]] = []
        for copy in placement.copies:
            pipeline = None if copy.device else placed_candidate(session, name, placement.pipeline(copy), executor)
            each.append((pipeline or names[copy.devices[0]], copy.requests))
        return Candidate.copied(each)
    if placement.shards and executor != "hetero":
        regions, homes = regions_of(placement, session.graph)
        return Candidate.sharded(regions, homes, list(names.values()))
    try:
        devices = [names[device] for device in placement.devices_of(session.graph)]
    except PlacementError as error:
        raise PlacementError(f"{name}: {error}") from error
    if executor == "hetero":
        return Candidate.placed(devices)
    priority = placement.priority_of(session.graph)
    order = [names[device.name] for device in placement.devices]
    by_load = find_objective(placement.objective).is_steady
    return Candidate.side_by_side(devices, order, priority, by_load=by_load, executor=executor)


def measured_timeline(session: Session, candidate: Candidate, runs: int = 10) -> Timeline:
    """The median run of a candidate, primitive by primitive; part by part where parts ran side by side.

    HETERO runs one submodel after another and counters give durations alone, so intervals are laid end to end in
    order of execution; what the whole takes longer than its primitives is spread evenly over the starts of
    submodels. A primitive is listed at its heaviest op; those that plugins add, such as layout changes, follow the
    model's ops under names of their own. Raises SearchError when the candidate does not run.
    """
    if candidate.copies:
        raise SearchError("no trace: copies have no course of one inference; name a device, or another placement")
    try:
        if candidate.executor == "work-conserving" or session.is_on_torch:  # by the executor's own clock
            asked = ask(Worker.timeline, session.runner.hinted(candidate), runs, session.runner.limits.inference_s)
            return replace(session.client.call(asked, 300.0), name=session.model_record.name)
        used = candidate.devices or (candidate.target,)
        shown = [spec for spec in session.devices.all if spec.openvino_name in used]
        if not shown:
            raise SearchError(f"no trace: {candidate.target} is no device; name one, or a placement")
        plain = Candidate(candidate.target, candidate.devices)
        answer = session.client.call(ask(Worker.op_times, plain, shown[0].openvino_name, runs, 10.0), 300.0)
    except CandidateFailed as failure:
        raise SearchError(f"no trace: {failure.reason}") from failure
    graph = session.graph
    index = {spec.openvino_name: d for d, spec in enumerate(shown)}
    primitives: list[tuple[list[int], float, int, str]] = answer["primitives"]
    home = dict.fromkeys((submodel for _, _, submodel, _ in primitives), 0)
    if candidate.devices is not None:
        home |= {submodel: index[candidate.devices[ops[0]]] for ops, _, submodel, _ in primitives if ops}
    names, types = list(graph.op_names), list(graph.op_types)
    rows: list[tuple[int, int, float, float]] = []
    gap_s = max(answer["latency_s"] - sum(p[1] for p in primitives), 0.0) / max(len(home), 1)
    now_s = 0.0
    entered = -1
    for ops, seconds, submodel, kind in primitives:
        if seconds <= 0:
            continue
        if submodel != entered:
            now_s += gap_s
            entered = submodel
        op = max(ops, key=lambda v: (graph.flops[v], -graph.position[v]), default=len(names))
        if op == len(names):
            names.append(f"{kind} added by the plugin, {len(names) - graph.num_ops + 1}")
            types.append(kind)
        rows.append((op, home[submodel], now_s, now_s + seconds))
        now_s += seconds
    table = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    none, no_time = np.zeros(0, dtype=np.int64), np.zeros(0)
    return Timeline(
        name=session.model_record.name,
        op_names=tuple(names),
        op_types=tuple(types),
        device_names=tuple(spec.name for spec in shown),
        ops=OpIntervals(table[0].astype(np.int64), table[1].astype(np.int64), table[2], table[3]),
        transfers=TransferIntervals(none, none, none, no_time, no_time, no_time),
        edges=np.stack([graph.edge_src, graph.edge_dst], axis=1),
        simulated=False,
    )
