"""Profiling: measuring a model's ops on every device, transfers between devices, and devices side by side.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.processes import COMPILING_LIMIT_S, CandidateFailed, WorkerClient
from hsdag.runtime.machine.usable import BUSY, OtherPrograms
from hsdag.runtime.measuring.caches import ProfileCache, identity
from hsdag.runtime.measuring.messages import Call, Candidate, Probe, Probed, TimesBeside, ask
from hsdag.runtime.measuring.probes import CROSSING_CHANNELS, LEAST_ROUNDS
from hsdag.runtime.measuring.profile import KINDS, Contention, DeviceProfile, LinkProfile, ModelProfile, numbers
from hsdag.runtime.measuring.runner import with_hint
from hsdag.runtime.measuring.worker import Worker

A = TypeVar("A")

LEAST_CALL_LIMIT_S = 60.0
"""A device may take as long as the whole budget to profile, and at least this, before it counts as hanging."""

SHARE_OF_MODEL = 0.7  # of the time for two devices side by side
RUNS_OF_ROUND = 4  # inferences that one round of the model takes

AGAIN = 8
"""A model is compiled again without performance counters where that takes at most one part in so many of the time."""

FIGURES = ("spread", "runs", "resident_bytes", "memory_bytes", "compile_s", "first_s", "device_bytes")
"""Of a device and a model, which the worker answers as they stand; torch devices have no first_s and device_bytes."""


@dataclass(frozen=True)
class Effort:
    """How long a profile may take: runs of the model on each device, seconds for them, and the same for a probe.

    ``total_s`` is for all devices, compilation included: one that would go beyond it is not begun. ``pair_limit_s`` is
    for each pair of devices that is measured side by side, compilation apart.
    """

    runs: int = 20
    limit_s: float = 3.0
    probe_runs: int = 40
    probe_limit_s: float = 0.3
    call_limit_s: float = 300.0
    total_s: float = 600.0
    pair_limit_s: float = 2.0

    @staticmethod
    def within(budget_s: float, num_devices: int) -> Effort:
        """Less than the default where that would take more than a sixth of a budget, with compilation half of it."""
        pairs = num_devices * max(num_devices - 1, 1)
        return Effort(
            limit_s=min(Effort.limit_s, budget_s / (12 * num_devices)),
            probe_limit_s=min(Effort.probe_limit_s, budget_s / (12 * 2 * len(PROBES) * pairs)),
            call_limit_s=min(Effort.call_limit_s, max(budget_s, LEAST_CALL_LIMIT_S)),
            total_s=min(Effort.total_s, budget_s / 2),
            pair_limit_s=min(Effort.pair_limit_s, budget_s / (8 * pairs)),
        )


@dataclass(eq=False)
class Profiler:
    """Measures one model in a worker, device by device, and keeps what it finds in a cache.

    ``digest`` identifies the model and its inputs: everything that times depend on beside the device.
    """

    client: WorkerClient
    graph: ComputationGraph
    digest: str
    cache: ProfileCache
    _: KW_ONLY
    effort: Effort = field(default_factory=Effort)
    on_step: Callable[[str], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter
    others: Callable[[], OtherPrograms] = OtherPrograms

    def __post_init__(self) -> None:
        self._begin_s = self.clock()
        self._longest_s = 0.0
        self._whole: dict[str, tuple[str, Mapping[str, Any]]] = {}  # by plugin, a device that runs the whole model
        self._index = {name: v for v, name in enumerate(self.graph.canonical_names)}
        of_products, of_images = (
            self.graph.flops[[t == kind for t in self.graph.op_types]] for kind in ("MatMul", "Convolution")
        )
        self._kind = "image" if len(of_images) and of_images.sum() >= of_products.sum() else "matrix"
        self._tensors = f"{self._kind} of {CROSSING_CHANNELS} channels"

    def profile(self, devices: Sequence[DeviceSpec], carriers: IntArray, *, side_by_side: bool = False) -> ModelProfile:
        """Times on all devices and links between them; ``side_by_side`` also how much devices slow each other down.

        ``carriers`` [N, D] is the device that runs op v while device d is profiled: d itself where it can. Raises
        DeviceError when a device cannot be profiled.
        """
        times = tuple(self._device(devices, carriers[:, d], d) for d in range(len(devices)))
        links = self._links(devices)
        if side_by_side and not any(spec.plugin.islower() for spec in devices):  # torch's devices copy by streams
            links = replace(links, sync_bytes=SYNC_BYTES, sync_s=self.syncs(devices))
        contention = self.contention(devices, times) if side_by_side and len(devices) > 1 else None
        return ModelProfile(devices=times, links=links, contention=contention)

    def _step(self, what: str) -> None:
        if self.should_stop():
            raise DeviceError("profiling was interrupted")
        self.on_step(what)

    @property
    def _left_s(self) -> float:
        return self.effort.total_s - (self.clock() - self._begin_s)

    def _device(self, devices: Sequence[DeviceSpec], carrier: IntArray, d: int) -> DeviceProfile:
        """From the cache, else measured; ``carrier`` [N] is what runs each op meanwhile."""
        spec = devices[d]
        begin_s = self.clock()
        own = np.asarray(carrier == d)
        on = [devices[c].openvino_name for c in carrier.tolist()]
        # what times depend on; the machine is not in it: the cache is this machine's own
        key: dict[str, Any] = {"what": "ops", "model": self.digest, "device": identity(spec)}
        if not own.all():
            key["carriers"] = [identity(other) for other in devices if other.openvino_name in on]
        stored: Mapping[str, Any] | None = self.cache.get(key, self.effort.limit_s)
        if stored is not None:
            self.on_step(f"{spec.name} was profiled before; --fresh measures it again")
        elif self._longest_s > self._left_s:
            takes = f"profiling {spec.name} takes about {self._longest_s:.0f} s"
            reason = f"{takes}, and only {max(self._left_s, 0.0):.0f} s are left for profiling"
            if not own.all() or spec.plugin not in self._whole:
                raise DeviceError(reason)
            name, stored = self._whole[spec.plugin]
            self.on_step(f"{reason}; its ops are taken to run as on {name}")
        else:
            self._step(f"profiling {spec.name}")
            stored = self._measure(spec, on)
            self._longest_s = max(self._longest_s, self.clock() - begin_s)
            self.cache.put(key, stored, self.effort.limit_s)
        if own.all():
            self._whole.setdefault(spec.plugin, (spec.name, stored))
        return self._device_profile(spec, stored, own)

    def _measure(self, spec: DeviceSpec, on: list[str]) -> dict[str, Any]:
        """The worker's answer with ops by name: another file of the same model may number them otherwise."""
        names = self.graph.canonical_names
        measured = self.effort.runs, self.effort.limit_s, self.effort.total_s / AGAIN
        request = ask(Worker.op_times, Candidate.placed(on), spec.openvino_name, *measured)
        try:
            answer = self.client.call(request, self.effort.call_limit_s, COMPILING_LIMIT_S)
        except CandidateFailed as failure:
            raise DeviceError(f"device {spec.name!r} cannot be profiled: {with_hint(failure, spec)}") from failure
        return {**answer, "primitives": [[[names[v] for v in ops], s] for ops, s, *_ in answer["primitives"]]}

    def _device_profile(self, spec: DeviceSpec, stored: Mapping[str, Any], own: np.ndarray) -> DeviceProfile:
        """Primitives spread over ops: the figure of each to its heaviest op, what has no op to all in proportion."""
        time_s = np.zeros(len(own))
        floating = floating_ops(self.graph)
        fused = []
        named = [[self._index[name] for name in op_names] for op_names, _ in stored["primitives"]]
        inside = {v for ops in named for v in ops} | set(np.flatnonzero(floating | ~own).tolist())
        for ops, (_, seconds) in zip(named, stored["primitives"], strict=True):
            self._add_unnamed(ops, inside)
            if ops:
                time_s[max(ops, key=lambda v: (self.graph.flops[v], -self.graph.position[v]))] += seconds
            together = tuple(v for v in ops if not floating[v])
            if len(together) > 1:
                fused.append(together)
        total_s = float(time_s.sum())
        if total_s > 0:
            time_s *= float(stored["latency_s"]) / total_s
        elif own.any():  # counters stand still for ops below their resolution
            candidates = np.flatnonzero(own & ~floating) if (own & ~floating).any() else np.flatnonzero(own)
            time_s[max(candidates.tolist(), key=lambda v: self.graph.flops[v])] = float(stored["latency_s"])
        time_s[~own] = np.nan
        figures = {name: stored[name] for name in FIGURES if name in stored}
        latency_s = float(stored["latency_s"]) if own.all() else None
        return DeviceProfile(time_s, tuple(fused), latency_s, device=spec, **figures)

    def _add_unnamed(self, ops: list[int], inside: set[int]) -> None:
        """Add to a primitive's ops the arithmetic before them that no primitive names, and nothing else reads.

        A plugin that computes a product together with the sum after it may name the sum alone.
        """
        for v in ops:  # grows meanwhile
            for u in self.graph.predecessors.of(v).tolist():
                if u not in inside and self.graph.flops[u] > 0 and set(self.graph.successors.of(u).tolist()) <= {v}:
                    ops.append(u)
                    inside.add(u)

    def _kept(
        self,
        key: Mapping[str, Any],
        effort_s: float,
        what: str,
        measure: Callable[[], dict[str, Any]],
        is_whole: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """From the cache, else measured, and kept if it is whole."""
        stored = self.cache.get(key, effort_s)
        if stored is None:
            self._step(what)
            stored = measure()
            if is_whole(stored):
                self.cache.put(key, stored, effort_s)
        return stored

    def _links(self, devices: Sequence[DeviceSpec]) -> LinkProfile:
        key = {"what": "links", "kind": self._tensors, "devices": [identity(spec) for spec in devices]}
        names = [spec.openvino_name for spec in devices]
        stored = self._kept(key, self.effort.probe_limit_s, "profiling transfers", lambda: self._measured_links(names))
        launch_s, latency_s, bandwidth = (np.array(table) for table in stored.values())
        return LinkProfile(launch_s, latency_s, bandwidth)

    def _measured_links(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Launches, latencies and bandwidths under HETERO; where a device does not run probes, means of the others'."""
        alone = [self._probed((name,)) for name in names]
        table = np.full((3, len(names), len(names)), np.nan)
        for a, b in itertools.permutations(range(len(names)), 2):
            fitted = fit_link(PROBES, alone[a], alone[b], self._probed((names[a], names[b])))
            if fitted is not None:
                table[:, a, b] = fitted
        launch, latency, inverse = table
        return {
            "launch_s": [_mean(column, launch) for column in launch.T],
            "latency_s": _filled(latency).tolist(),
            "bandwidth_bytes_per_s": (1.0 / np.maximum(_filled(inverse), 1e-12)).tolist(),
        }

    def _probed(self, names: tuple[str, ...]) -> list[Probed | None]:
        """Probes on one device, or cut between two; None for one that does not run."""
        return [self._answer(ask(Worker.probe, self._probe(names, *each))) for each in PROBES]

    def _probe(self, names: tuple[str, ...], tensors: int, size_bytes: int) -> Probe:
        return Probe(names, self._kind, tensors, size_bytes, self.effort.probe_runs, self.effort.probe_limit_s)

    def _answer(self, request: Call[A]) -> A | None:
        try:
            return self.client.call(request, PROBE_LIMIT_S, COMPILING_LIMIT_S)
        except CandidateFailed:
            return None

    def syncs(self, devices: Sequence[DeviceSpec]) -> FloatArray:
        """[S, D, D] seconds of a sync of each size for each pair of devices; NaN where the executor does not run it."""
        pairs = list(itertools.combinations(range(len(devices)), 2))
        stored = self._kept(
            {"what": "syncs", "kind": self._tensors, "devices": [identity(spec) for spec in devices]},
            self.effort.probe_limit_s,
            "profiling syncs",
            lambda: {"syncs": [self._syncs(devices[a], devices[b]) for a, b in pairs]},
        )
        found = np.full((len(SYNC_BYTES), len(devices), len(devices)), np.nan)
        for (a, b), taken_s in zip(pairs, numbers(stored["syncs"]), strict=True):
            found[:, [a, b], [b, a]] = taken_s[:, None]
        return found

    def _syncs(self, *pair: DeviceSpec) -> list[float | None]:
        names = tuple(spec.openvino_name for spec in pair)
        return [self._answer(ask(Worker.sync, pair, self._probe(names, 1, size))) for size in SYNC_BYTES]

    def contention(self, devices: Sequence[DeviceSpec], times: Sequence[DeviceProfile]) -> Contention:
        """Small models and the model itself on two devices at once; what fails, or takes too long, stays unknown.

        Where other programs slowed devices down, too, this is not kept, and counts as unknown.
        """
        others = self.others()
        meanwhile = ""

        def is_whole(found: dict[str, Any]) -> bool:
            nonlocal meanwhile
            if (share := others.share()) >= BUSY:
                meanwhile = f"other programs used {share:.0%} of the processors, so "
            return all(found.values()) and not meanwhile

        stored = self._kept(
            {"what": "side by side", "model": self.digest, "devices": [identity(spec) for spec in devices]},
            self.effort.pair_limit_s,
            "profiling devices side by side",
            lambda: {kind: self._side_by_side(tuple(devices), kind, times) for kind in KINDS},
            is_whole,
        )
        found = replace(Contention.of(stored, len(devices)), is_disturbed=bool(meanwhile))
        for a, b in itertools.combinations(range(len(devices)), 2):
            if np.isnan(found.slowdown[[a, b], [b, a]]).any():
                pair = f"{devices[a].name} and {devices[b].name}"
                self.on_step(f"{meanwhile}the slow-down of {pair} could not be measured; none is assumed")
        return found

    def _side_by_side(self, devices: tuple[DeviceSpec, ...], kind: str, times: Sequence[DeviceProfile]) -> TimesBeside:
        """Seconds [D, D, R] alone and side by side; nothing where devices do not run it, or the model is too slow."""
        share = SHARE_OF_MODEL if kind == "model" else (1.0 - SHARE_OF_MODEL) / 2
        if kind == "model":
            num_rounds = LEAST_ROUNDS * math.comb(len(devices), 2)
            slowest_s = max(math.inf if t.latency_s is None else t.latency_s for t in times)
            if sum(t.compile_s for t in times) + num_rounds * RUNS_OF_ROUND * slowest_s > self._left_s:
                return []
        try:
            request = ask(Worker.contention, devices, kind, share * self.effort.pair_limit_s)
            return self.client.call(request, self.effort.call_limit_s, COMPILING_LIMIT_S)
        except CandidateFailed:
            return []


PROBES = ((1, 1 << 12), (1, 1 << 18), (1, 1 << 21), (4, 1 << 12), (4, 1 << 19))
"""Tensors that cross, and bytes of each: few and many tell a launch from a tensor's latency, sizes the bandwidth."""

SYNC_BYTES = 1 << 14, 1 << 18, 1 << 21
"""Sizes of tensors that two devices exchange: what is small shows a launch, what is large the bytes."""

PROBE_LIMIT_S = 60.0
"""How long a probe may take before the worker counts as hanging."""

MODEL_ERROR, FLOOR_S = 0.05, 1e-6
"""What a launch, a latency and a bandwidth miss of a probe's figure, and the least error of any."""


def fit_link(
    sizes: Sequence[tuple[int, int]],
    sender: Sequence[Probed | None],
    receiver: Sequence[Probed | None],
    both: Sequence[Probed | None],
) -> tuple[float, float, float] | None:
    """Launch, latency per tensor and seconds per byte, none negative, from probes of several sizes.

    What a probe takes cut in two, less the mean of what it takes whole on either device, is a launch, and latency and
    bytes for each tensor. Least squares, each probe weighed by its own standard error and by what the model leaves
    out, MODEL_ERROR of its figure and FLOOR_S. None where fewer than three sizes ran.
    """
    from scipy.optimize import nnls  # only here: it loads slowly

    rows, extra_s, error_s = [], [], []
    for (tensors, _), a, b, cut in zip(sizes, sender, receiver, both, strict=True):
        if a is not None and b is not None and cut is not None:
            extra = cut.rest_s - 0.5 * (a.rest_s + b.rest_s)
            rows.append([1.0, tensors, tensors * cut.tensor_bytes])
            extra_s.append(extra)
            errors_s = (cut.error_s, 0.5 * a.error_s, 0.5 * b.error_s, MODEL_ERROR * extra, FLOOR_S)
            error_s.append(float(np.linalg.norm(errors_s)))
    if len(rows) < 3:
        return None
    scale = np.array([1e-6, 1e-6, 1e-12])
    weights = 1.0 / np.array(error_s)
    solution, _ = nnls(np.array(rows) * scale * weights[:, None], np.array(extra_s) * weights)
    launch_s, latency_s, per_byte_s = (solution * scale).tolist()
    return launch_s, latency_s, per_byte_s


def _filled(table: FloatArray) -> FloatArray:
    """[D, D] with means in place of what is missing: of the devices' own figures, else of all."""
    own = [[_mean(np.append(row, column), table) for column in table.T] for row in table]
    return np.where(np.isnan(table), own, table)


def _mean(values: FloatArray, others: FloatArray) -> float:
    """Of those values that are numbers, else of the others that are, else 0."""
    known = next((x[~np.isnan(x)] for x in (values, others) if not np.isnan(x).all()), np.zeros(1))
    return float(known.mean())
