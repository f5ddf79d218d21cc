"""Session: a loaded model, its devices and a worker process, ready for a search or for measuring."""

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

from hsdag.base.errors import OptionError, PlacementError, SearchError, option
from hsdag.base.processes import COMPILING_LIMIT_S, CandidateFailed, process_command
from hsdag.commands.place.loaded_model import ModelInputs, PlacedModel, read_for_torch, read_model
from hsdag.drawing import in_bytes
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.colocation import floating_ops, half_constants, widened
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray
from hsdag.ir.placement.divided import regions_of
from hsdag.ir.placement.homes import check_model, op_devices, placed_priority
from hsdag.ir.placement.placement import ExecutorName, ModelRecord, Placement
from hsdag.runtime.machine.devices import DeviceSet, canonical, cpu_topology, reduced_precision
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.effort import Effort, ProfilingRun
from hsdag.runtime.measuring.measurer import Measurer
from hsdag.runtime.measuring.messages import WORKER_COMMAND, Candidate, OpTimes, WorkerSetup, ask, worker_client
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.profiler import Profiler
from hsdag.runtime.measuring.runner import ASKING_LIMIT_S, CandidateRunner, WorkerLimits, unsupported_ops
from hsdag.runtime.objectives import LATENCY, Objective, find_objective
from hsdag.runtime.problem.pins import Pin, pinned_devices
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.timeline import OpIntervals, Timeline, TransferIntervals
from hsdag.search.evaluators.measured import candidate_of
from hsdag.search.evaluators.memory import MemoryCheck
from hsdag.search.evaluators.schedule import model_values

SCHEDULING = (
    *("AFFINITY", "ENABLE_CPU_PINNING", "ENABLE_HYPER_THREADING", "EXCLUSIVE_ASYNC_REQUESTS", "INFERENCE_NUM_THREADS"),
    *("NUM_STREAMS", "SCHEDULING_CORE_TYPE"),
)
"""Properties that decide when and where ops run; devices that differ in these alone support the same ops."""

TORCH_WORKER_COMMAND = process_command("hsdag.runtime.torch.worker")


class Session(AbstractContextManager["Session"]):
    """A model that this process and a worker have read; the worker ends when the context is left.

    Args:
        source: Path, ``ov.Model`` or torch module; also a workload for the executor "cuda". A model in memory is
            written to a temporary IR, so that both processes number ops alike.
        devices: Devices, which are torch's for the executor "cuda".
        inputs: Shapes and data of the model's inputs, by default random data.
        memory_bytes: Limits of memory, by device.
        pins: Ops that have to be on one device.
        candidate_limit_s: Seconds to compile a candidate; half of it to run it.
        kernels_s: Seconds that the worker may spend on compiling kernels.

    Attributes:
        graph: Graph of the model with the sizes of the scenarios.
        until_end: Stack of what is closed at the end of the session.

    Raises ModelError for a model that cannot be read, DeviceError for devices that cannot be loaded, OptionError for a
    limit of an unknown device, for pins that cannot be kept, and for scenarios of the executor "cuda".
    """

    def __init__(
        self,
        source: Any,
        devices: DeviceSet,
        inputs: ModelInputs | None = None,
        *,
        objective: Objective = LATENCY,
        executor: ExecutorName = "hetero",
        memory_bytes: Mapping[str, float] | None = None,
        pins: Sequence[Pin] = (),
        candidate_limit_s: float = 120.0,
        kernels_s: float = math.inf,
    ) -> None:
        inputs = inputs or ModelInputs()
        inputs.check()
        self.is_on_torch = executor == "cuda"
        self._limits, self._pins = dict(memory_bytes or {}), pins
        all_names = DeviceIndex(devices.all).names
        for limited in self._limits:
            if limited not in all_names:
                choices = ", ".join(all_names)
                raise OptionError(f"{option('memory')} names device {limited!r}; the devices are {choices}")
        self.until_end = ExitStack()
        self._unsupported: dict[tuple[str, str], IntArray] = {}
        with self.until_end:
            # files that are still mapped cannot be deleted on every system
            made = tempfile.TemporaryDirectory(prefix="hsdag-", ignore_cleanup_errors=True)
            folder = Path(self.until_end.enter_context(made))
            if self.is_on_torch:
                self.loaded = read_for_torch(source, inputs, folder, len(devices.placed))
            else:
                self.loaded = read_model(source, inputs, folder)
            graph = self.loaded.graph
            names = devices.index.names
            needed, room = float(graph.weight_bytes.sum()), sum(self._limits.get(name, np.inf) for name in names)
            if names and room < needed:
                raise OptionError(
                    f"{option('memory')} allows {' and '.join(names)} {in_bytes(room)} together; they need at least "
                    f"{in_bytes(needed)}"
                )
            self.scenarios = self.loaded.scenarios
            self._take(devices, objective)
            self.model_record = ModelRecord.of(self.graph, self.loaded.name)
            texts = [self.model_record.fingerprint, *(scenario.text for scenario in self.scenarios)]
            self.digest = _digest(self.loaded.path, inputs.file, texts)
            data = inputs.seed, inputs.file, self.scenarios
            setup = WorkerSetup(self.loaded.path, devices.all, self.loaded.shapes, *data, kernels_s)
            command = TORCH_WORKER_COMMAND if self.is_on_torch else WORKER_COMMAND
            self.client = self.until_end.enter_context(worker_client(setup, command))
            limits = WorkerLimits(compile_s=candidate_limit_s, run_s=max(candidate_limit_s / 2, 1.0))
            self.runner = CandidateRunner(self.client, objective, limits, self.scenarios)
            self.until_end = self.until_end.pop_all()

    def __exit__(self, *_: object) -> None:
        self.loaded = replace(self.loaded, model=None)  # which may be mapped from its file
        self.until_end.close()

    def _take(self, devices: DeviceSet, objective: Objective) -> None:
        """Set the devices, and derive the graph with the precision in which they hold half constants."""
        graph = self.loaded.graph
        in_half = not self.is_on_torch and bool(half_constants(graph).any())
        in_single = [in_half and not reduced_precision((spec,)) for spec in devices.placed]
        self.devices = devices
        self.in_single = np.array(in_single, dtype=np.bool_)  # [D] devices that hold half constants in single precision
        self.graph: ComputationGraph = widened(graph) if self.in_single.all() else graph
        self.widens = self.in_single & (not self.in_single.all())  # [D] as above, unless the graph has wide sizes
        units, labels = self.loaded.units, self.loaded.labels
        pinned = pinned_devices(graph.op_names, self._pins, devices.index.names, floating_ops(self.graph))
        self.model = PlacedModel(self.graph, devices.placed, objective, units, labels, pinned)
        self._problems: dict[object, Problem] = {}

    def use(self, devices: DeviceSet) -> None:
        """Replace the devices by the same ones with other properties, and other rivals, and restart the worker.

        The devices must support the same ops as before.
        """
        for old, new in zip(self.devices.placed, devices.placed, strict=True):
            if (unsupported := self._unsupported.get(_kind(old))) is not None:
                self._unsupported[_kind(new)] = unsupported
        self._take(devices, self.model.objective)
        assert isinstance(self.client.setup, WorkerSetup)
        self.client.setup = replace(self.client.setup, devices=devices.all)
        self.client.restart()
        self.client.begin()

    def unsupported_ops(self, spec: DeviceSpec) -> IntArray:
        """Return the indices of the ops that a device does not support.

        Asking a device takes as long as compiling, so equal devices are asked once. Raises DeviceError if that fails.
        """
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
        """Measure times of ops on ``devices.placed`` and of transfers between them, or take them from the cache.

        Args:
            side_by_side: Whether to measure too how much devices slow each other down when they work in parallel.

        Raises DeviceError if a device cannot be profiled, no device supports an op, or ``should_stop`` returns True.
        """
        problem = self.problem(is_free=True)
        first = problem.supported.argmax(axis=1)
        devices = np.arange(problem.num_devices)
        carriers = np.where(problem.supported, devices, first[:, None])[problem.units.partition.labels]
        kept = cache or ProfileCache.default()
        run = ProfilingRun(
            self.client,
            self.graph,
            self.digest,
            kept,
            effort=effort or Effort(),
            on_step=on_step,
            on_note=on_note,
            should_stop=should_stop,
        )
        profiler = Profiler(run, has_one_course=not self.scenarios)
        whole_devices = whole_cpus(self.devices) if side_by_side and not self.is_on_torch else ()
        return profiler.profile(self.devices.placed, carriers, side_by_side=side_by_side, whole_devices=whole_devices)

    def problem(
        self, *, max_share: float | None = None, profile: ModelProfile | None = None, is_free: bool = False
    ) -> Problem:
        """Return the placement problem over ``devices.placed``.

        Args:
            max_share: Largest share of the work in one placement unit, by default DEFAULT_SHARE.
            profile: Profile that gives costs, and ops to keep together because they are fused.
            is_free: Whether to leave out pins.

        Raises DeviceError if no device supports an op, OptionError for pins that cannot be kept.
        """
        is_free = is_free and bool(self._pins)
        fused = () if profile is None else profile.fused
        model = replace(self.model, pinned=None) if is_free else self.model
        if (key := (max_share, fused, is_free)) not in self._problems:
            refused = tuple(self.unsupported_ops(spec) for spec in self.devices.placed)
            self._problems[key] = model.problem(refused, fused, max_share=max_share)
        problem = replace(self._problems[key], objective=model.objective)
        if profile is None:
            return problem
        return model.priced(problem, profile, self._limits, by_op=self.is_on_torch)

    def memory_limits(self, profile: ModelProfile | None) -> dict[str, float]:
        """Return the memory in bytes by device: the limit, or else what the profile says, where it is known."""
        of_profile = () if profile is None else zip(profile.devices, profile.times, strict=True)
        limits = {spec.name: times.memory_bytes for spec, times in of_profile if times.memory_bytes is not None}
        limits |= self._limits
        return limits | {name: limits[chosen] for name, chosen in self.devices.defaults.items() if chosen in limits}

    def automatic_ops(self, target: str) -> list[str]:
        """Return OpenVINO's own choice of device for every op [N], by its names; empty if it has none.

        HETERO gives an op to the first device that supports it, and is asked only if the first one lacks an op.
        """
        first = target.removeprefix("HETERO:").partition(",")[0]
        if any(spec.openvino_name == first and not len(self.unsupported_ops(spec)) for spec in self.devices.placed):
            return [first] * self.graph.num_ops
        try:
            return self.client.call(ask(Measurer.choices, target), ASKING_LIMIT_S, COMPILING_LIMIT_S)
        except CandidateFailed:
            return []

    def placed(self, problem: Problem, plan: Plan, executor: ExecutorName = "hetero") -> Candidate:
        """Return a plan as a candidate for an executor."""
        return candidate_of(problem, self.devices.placed, plan, executor)


def whole_cpus(devices: DeviceSet) -> tuple[DeviceSpec, ...]:
    """Return the physical CPUs if the partitions to place on have all of their threads, else nothing."""
    shares = [int(spec.properties.get("INFERENCE_NUM_THREADS", 0)) for spec in devices.placed if spec.plugin == "CPU"]
    cpus = (spec for spec in devices.rivals if spec.plugin == "CPU" and spec.name not in devices.defaults)
    return tuple(cpus) if sum(shares) >= cpu_topology().threads else ()


def _kind(spec: DeviceSpec) -> tuple[str, str]:
    """Return a key that is equal for devices which support the same ops."""
    return spec.plugin, str(sorted((k, v) for k, v in spec.properties.items() if k not in SCHEDULING))


def _digest(model: Path, inputs: Path | None, texts: Sequence[str]) -> str:
    """Return a digest of what a model's times depend on other than the devices.

    It covers the model file without the weights of an IR, because a fingerprint lacks attributes and the bodies of If
    and Loop, the inputs, and ``texts``: the fingerprint, with the fixed shapes, and the scenarios.
    """
    digest = hashlib.sha256("\n".join(texts).encode())
    parts = sorted(path for path in model.rglob("*") if path.is_file()) if model.is_dir() else [model]
    for path in [*parts, *filter(None, [inputs])]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def normalize_objective(session: Session, problem: Problem, costs: PlacementCosts) -> Problem:
    """Scale the objective to the best single device, in the problem returned and in the session's measurements.

    Peaks of memory are always simulated, also for measured candidates. HETERO's costs give times alone, so they are
    left out of the problem if memory counts.

    Raises OptionError if memory counts and there is no profile.
    """
    objective = problem.objective

    def best_single(term: Objective) -> float:
        values = model_values(replace(problem, objective=term), costs, problem.alone)
        return float(np.min(values, initial=np.inf, where=np.isfinite(values)))

    scaled = objective.scaled(best_single)
    session.model = replace(session.model, objective=scaled)
    session.runner.objective = scaled
    normalized = replace(problem, objective=scaled)
    if objective.counts_memory:
        if problem.costs is None:
            needs = f"{option('objective')} {objective.name} needs a profile of the model"
            raise OptionError(f"{needs}, which there is none of")
        session.runner.peak_of = lambda candidate: peak_of(session, problem, candidate)
        normalized = replace(normalized, ops=None)
    return normalized


def peak_of(session: Session, problem: Problem, candidate: Candidate) -> float:
    """Return the largest peak of memory over a candidate's devices in bytes, simulated.

    A single device that is not placed on has the peak of any other with all ops. Raises CandidateFailed if the devices
    of ops are not known.
    """
    index = session.devices.index
    able = np.flatnonzero(problem.supported.all(axis=0)).tolist()
    whole = index.openvino_positions([candidate.target]) if candidate.target in index.openvino_names else able
    units = None
    if candidate.devices is not None:
        units = session.model.of_units(problem, index.openvino_positions(candidate.devices))
    elif candidate.target.startswith("HETERO:"):
        chosen = session.automatic_ops(candidate.target)
        units = session.model.of_units(problem, index.openvino_positions(chosen))
    elif candidate.target in DeviceIndex(session.devices.all).openvino_names and whole:
        units = np.full(problem.num_units, whole[0])
    if units is None:
        raise CandidateFailed("its peak of memory is not known, since nothing says which op is where")
    return float(MemoryCheck(problem.known_costs, problem.semantics).peak_bytes(units).max())


def placed_candidate(session: Session, name: str, placement: Placement, executor: ExecutorName) -> Candidate:
    """Return a placement as a candidate to measure. Raises PlacementError if it is for another model."""
    in_file, here = DeviceIndex.of(placement.devices), DeviceIndex.of(map(canonical, placement.devices))
    if placement.copies:
        check_model(placement, session.graph)
        copies: list[tuple[str | Candidate, int]] = []
        for copy in placement.copies:
            pipeline = None if copy.device else placed_candidate(session, name, copy.pipeline(placement), executor)
            name_here = here.openvino_named(in_file.positions(copy.devices[:1]))[0]
            copies.append((pipeline or name_here, copy.requests))
        return Candidate.copied(copies)
    if placement.shards and executor != "hetero":
        regions, homes = regions_of(placement, session.graph)
        return Candidate.sharded(regions, homes, here.openvino_names)
    try:
        devices = here.openvino_named(in_file.positions(op_devices(placement, session.graph)))
    except PlacementError as error:
        raise PlacementError(f"{name}: {error}") from error
    if executor == "hetero":
        return Candidate.placed(devices)
    priority = placed_priority(placement, session.graph)
    by_load = find_objective(placement.objective).is_steady
    return Candidate.side_by_side(devices, here.openvino_names, priority, by_load=by_load, executor=executor)


def measured_timeline(session: Session, candidate: Candidate, runs: int = 10) -> Timeline:
    """Measure the timeline of a candidate's median run, by primitive, or by part if parts run in parallel.

    Args:
        runs: Number of inferences, of which the median counts.

    Raises SearchError if the candidate does not run.
    """
    if candidate.copies:
        raise SearchError("no trace: copies have no course of one inference; name a device, or another placement")
    try:
        if candidate.executor == "work-conserving" or session.is_on_torch:  # by the clock of the executor
            asked = ask(Measurer.timeline, session.runner.hinted(candidate), runs, session.runner.limits.inference_s)
            return replace(session.client.call(asked, 300.0), name=session.model_record.name)
        used = candidate.devices or (candidate.target,)
        index = DeviceIndex.of(spec for spec in session.devices.all if spec.openvino_name in used)
        if not index.specs:
            raise SearchError(f"no trace: {candidate.target} is no device; name one, or a placement")
        plain = Candidate(candidate.target, candidate.devices)
        answer = session.client.call(ask(Measurer.op_times, plain, index.openvino_names[0], runs, 10.0), 300.0)
    except CandidateFailed as failure:
        raise SearchError(f"no trace: {failure.reason}") from failure
    return _laid_end_to_end(session, candidate, index, answer)


def _laid_end_to_end(session: Session, candidate: Candidate, index: DeviceIndex, answer: OpTimes) -> Timeline:
    """Return the timeline of a candidate on the devices of ``index`` from the times that the worker reports.

    HETERO runs submodels one after another and reports durations only, so intervals are laid end to end in the order of
    execution. The time of the whole run that primitives do not account for is spread evenly over the starts of
    submodels. A primitive is listed at its heaviest op; those that plugins add, like changes of layout, follow the
    model's ops under names of their own.
    """
    graph = session.graph
    primitives = answer["primitives"]
    home = dict.fromkeys((submodel for _, _, submodel, _ in primitives), 0)
    if candidate.devices is not None:
        devices = index.openvino_positions(candidate.devices)
        home |= {submodel: devices[ops[0]] for ops, _, submodel, _ in primitives if ops}
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
        device_names=index.names,
        ops=OpIntervals(table[0].astype(np.int64), table[1].astype(np.int64), table[2], table[3]),
        transfers=TransferIntervals(none, none, none, no_time, no_time, no_time),
        edges=np.stack([graph.edge_src, graph.edge_dst], axis=1),
        simulated=False,
    )
