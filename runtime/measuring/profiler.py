"""Profiling: measuring a model's ops on every device, transfers between devices, and devices side by side.

Legend: N ops, D devices, S sizes of tensors.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hsdag.base.errors import DeviceError
from hsdag.base.processes import COMPILING_LIMIT_S, CandidateFailed, WorkerClient
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.gates import has_one_thread
from hsdag.runtime.measuring.caches import ProfileCache, identity
from hsdag.runtime.measuring.messages import Beside, Call, Candidate, Probe, ask
from hsdag.runtime.measuring.probes import CROSSING_CHANNELS, shape_of
from hsdag.runtime.measuring.profile import (
    KINDS,
    Contention,
    DeviceProfile,
    LinkProfile,
    ModelProfile,
    figures,
    numbers,
)
from hsdag.runtime.measuring.runner import with_hint
from hsdag.runtime.measuring.windows import (
    AGREEING,
    DOUBT,
    Series,
    agreed,
    are_apart,
    contradicted,
    factors_of,
    figures_of,
    least_of,
    settle,
)
from hsdag.runtime.measuring.worker import Worker

A = TypeVar("A")

LEAST_CALL_LIMIT_S = 60.0
"""Least seconds that a device may take to profile, if the whole budget is less, before it counts as hanging."""

NO_TIME = "there was no time to measure"
"""What a note begins with where the time for a profile was too short."""

AGAIN = 8
"""Compile a model again without performance counters if compiling takes at most 1 / AGAIN of the time."""

FIGURES = ("spread", "runs", "resident_bytes", "memory_bytes", "compile_s", "first_s", "device_bytes")
"""Figures of a device and a model that are taken from the worker's answer; torch devices lack the last two."""


@dataclass(frozen=True)
class Effort:
    """Limits of a profile: runs of the model on each device, seconds for them, and the same for a probe.

    ``total_s`` is for all devices with compilation; a device that would exceed it is not begun. Measurements
    between devices take ``most_windows`` turns if they do not agree sooner.
    """

    runs: int = 20
    limit_s: float = 3.0
    probe_runs: int = 40
    probe_limit_s: float = 0.3
    call_limit_s: float = 300.0
    total_s: float = 600.0
    most_windows: int = 10

    @staticmethod
    def within(budget_s: float, num_devices: int) -> Effort:
        """Return the default, or less if that would take over a sixth of a budget, or half of it with compilation."""
        pairs = num_devices * max(num_devices - 1, 1)
        return Effort(
            limit_s=min(Effort.limit_s, budget_s / (12 * num_devices)),
            probe_limit_s=min(Effort.probe_limit_s, budget_s / (12 * 2 * len(PROBES) * pairs)),
            call_limit_s=min(Effort.call_limit_s, max(budget_s, LEAST_CALL_LIMIT_S)),
            total_s=min(Effort.total_s, budget_s / 3),
        )


@dataclass(eq=False)
class Profiler:
    """A profiler that measures one model in a worker, device by device, and caches the results.

    ``digest`` identifies the model and its inputs: everything that times depend on beside the device.
    """

    client: WorkerClient
    graph: ComputationGraph
    digest: str
    cache: ProfileCache
    _: KW_ONLY
    effort: Effort = field(default_factory=Effort)
    on_step: Callable[[str], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter
    has_one_course: bool = True
    """Whether the model has no scenarios, so that devices side by side run the same inference as in their profiles."""

    def __post_init__(self) -> None:
        self._begin_s = self.clock()
        self._longest_s = 0.0
        self._is_short = False  # whether time was over before all was measured
        self._measured: dict[str, str] = {}  # the first device of each kind, by the key of its profile
        self._whole: dict[str, tuple[str, Mapping[str, Any]]] = {}  # by plugin, a device that runs the whole model
        self._entries: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}  # by device, key and cached entry
        self._index = {name: v for v, name in enumerate(self.graph.canonical_names)}
        of_products, of_images = (
            self.graph.flops[[t == kind for t in self.graph.op_types]] for kind in ("MatMul", "Convolution")
        )
        self._kind = "image" if len(of_images) and of_images.sum() >= of_products.sum() else "matrix"
        self._tensors = f"{self._kind} of {CROSSING_CHANNELS} channels"

    def profile(
        self,
        devices: Sequence[DeviceSpec],
        carriers: IntArray,
        *,
        side_by_side: bool = False,
        whole_devices: Sequence[DeviceSpec] = (),
    ) -> ModelProfile:
        """Measure times on all devices and links between them; with ``side_by_side`` also mutual slow-downs.

        ``carriers`` [N, D] is the device that runs op v while device d is profiled: d itself where it can.
        ``whole_devices`` consist of all of these; slow-downs must agree with their speed. Raises DeviceError when a
        device cannot be profiled.
        """
        times = tuple(self._device(devices, carriers[:, d], d) for d in range(len(devices)))
        with_syncs = side_by_side and not any(spec.plugin.islower() for spec in devices)  # torch copies by streams
        links, syncs = self._links(devices), self._syncs(devices) if with_syncs else None
        beside = self._beside(devices, times, whole_devices) if side_by_side and len(devices) > 1 else None
        groups = [each for each in (links, syncs, beside) if each is not None]
        self._step("profiling transfers" + " and devices side by side" * bool(beside))
        settle([each.series for each in groups], self.effort.most_windows, lambda: self._left_s < 0, self.on_note)
        with suppress(CandidateFailed):
            self.client.call(ask(Worker.forget_probes), PROBE_LIMIT_S)
        found = [each.result() for each in groups]
        if beside is not None and self.has_one_course:
            times = tuple(map(self._corrected, times, _alone_of(beside.series, len(devices)).tolist()))
        profile = self._link_profile(found[0], len(devices))
        if syncs is not None:
            profile = replace(profile, sync_bytes=SYNC_BYTES, sync_s=by_pair(found[1], len(devices)))
        contention = None if beside is None else self._contention(devices, beside, found[-1])
        return ModelProfile(devices=times, links=profile, contention=contention)

    def _corrected(self, times: DeviceProfile, alone_s: float) -> DeviceProfile:
        """Return a profile with the latency measured in windows, if that contradicts the profile's.

        The profile of a device is one stretch of time, in which the machine may have given less than otherwise.
        """
        taken_s = times.latency_s
        if taken_s is None or not (DOUBT * alone_s < taken_s or DOUBT * taken_s < alone_s):
            return times
        if (entry := self._entries.get(times.device.name)) is not None:
            self.cache.put(entry[0], {**entry[1], "latency_s": alone_s}, self.effort.limit_s)
        return replace(times, time_s=times.time_s * (alone_s / taken_s), latency_s=alone_s)

    def _step(self, what: str) -> None:
        if self.should_stop():
            raise DeviceError("profiling was interrupted")
        self.on_step(what)

    @property
    def _left_s(self) -> float:
        return self.effort.total_s - (self.clock() - self._begin_s)

    def _device(self, devices: Sequence[DeviceSpec], carrier: IntArray, d: int) -> DeviceProfile:
        """Return a device's profile from the cache, or measure it; ``carrier`` [N] runs each op meanwhile."""
        spec = devices[d]
        begin_s = self.clock()
        own = np.asarray(carrier == d)
        on = DeviceIndex.of(devices).openvino_named(carrier.tolist())
        # all that times depend on, except the machine: the cache is this machine's own
        key: dict[str, Any] = {"what": "ops", "model": self.digest, "device": identity(spec)}
        if not own.all():
            key["carriers"] = [identity(devices[c]) for c in np.unique(carrier).tolist()]
        stored: Mapping[str, Any] | None = self.cache.get(key, self.effort.limit_s)
        alike = self._measured.setdefault(repr(key), spec.name)
        if stored is not None and alike != spec.name:
            self.on_step(f"{spec.name} is like {alike}, so its profile is the same")
        elif stored is not None:
            self.on_step(f"{spec.name} was profiled in an earlier run; --fresh measures it again")
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
        self._entries[spec.name] = key, stored
        if own.all():
            self._whole.setdefault(spec.plugin, (spec.name, stored))
        return self._device_profile(spec, stored, own)

    def _measure(self, spec: DeviceSpec, on: list[str]) -> dict[str, Any]:
        """Return the worker's answer with ops by name: another file of the same model may number them differently."""
        names = self.graph.canonical_names
        measured = self.effort.runs, self.effort.limit_s, self.effort.total_s / AGAIN
        candidate = Candidate.placed(on)
        if has_one_thread(spec):  # as in placements; unchanged, the whole model may end the process
            candidate = replace(candidate, devices=tuple(on))
        request = ask(Worker.op_times, candidate, spec.openvino_name, *measured)
        try:
            answer = self.client.call(request, self.effort.call_limit_s, COMPILING_LIMIT_S)
        except CandidateFailed as failure:
            raise DeviceError(f"device {spec.name!r} cannot be profiled: {with_hint(failure, spec)}") from failure
        return {**answer, "primitives": [[[names[v] for v in ops], s] for ops, s, *_ in answer["primitives"]]}

    def _device_profile(self, spec: DeviceSpec, stored: Mapping[str, Any], own: np.ndarray) -> DeviceProfile:
        """Spread the figures of primitives over ops: each to its heaviest op, those without ops in proportion."""
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
        """Add to a primitive's ops computing ops before them that no primitive names and nothing else reads.

        A plugin that computes a product together with the sum after it may name the sum alone.
        """
        for v in ops:  # the list grows meanwhile
            for u in self.graph.predecessors.of(v).tolist():
                if u not in inside and self.graph.flops[u] > 0 and set(self.graph.successors.of(u).tolist()) <= {v}:
                    ops.append(u)
                    inside.add(u)

    def _group(
        self,
        what: str,
        key: Mapping[str, Any],
        measure: Callable[[], FloatArray],
        refutes: Callable[[FloatArray, FloatArray], bool],
        figures_of: Callable[[FloatArray], FloatArray] = lambda least: least,
        **how: Any,
    ) -> _Group:
        """Return a group of figures cached under a key, which ``refutes`` compares with those of windows."""
        stored = self.cache.get(key, self.effort.probe_limit_s)
        kept = None if stored is None else numbers(stored["figures"])
        checked = None if kept is None else lambda least: refutes(kept, figures_of(least))
        series = Series(what, measure, refutes=checked, **how)
        return _Group(series, kept, figures_of, lambda found: self._keep(what, key, found))

    def _keep(self, what: str, key: Mapping[str, Any], found: FloatArray | None) -> None:
        """Cache figures; if there are none to be believed, delete the cached ones and tell the user."""
        if found is not None and not self._is_short:
            self.cache.put(key, {"figures": figures(found)}, self.effort.probe_limit_s)
            return
        self.cache.drop(key)
        if self._is_short:
            self.on_note(f"{NO_TIME} {what} well")
        else:
            self.on_note(f"measurements of {what} do not agree with each other; they are not kept")

    def _links(self, devices: Sequence[DeviceSpec]) -> _Group:
        """Return the group of the seconds of every probe beside its ops: on each device, and cut between each two."""
        names = DeviceIndex.of(devices).openvino_names
        targets = [*((name,) for name in names), *itertools.permutations(names, 2)]
        probes = [[self._probe(pair, *sizes) for pair in targets] for sizes in PROBES]

        def measure() -> FloatArray:
            probed = [
                [self._answer(ask(Worker.probe, probe), is_needed=k < FEWEST_SIZES) for probe in row]
                for k, row in enumerate(probes)
            ]
            return np.array([[np.nan if one is None else one.rest_s for one in row] for row in probed]).T.ravel()

        key = {"what": "links", "kind": self._tensors, "devices": [identity(spec) for spec in devices]}
        return self._group("transfers", key, measure, _links_differ, tolerance=0.3, floor=FLOOR_S)

    def _link_profile(self, rest_s: FloatArray, num: int) -> LinkProfile:
        """Return launches, latencies and bandwidths under HETERO; for a device that runs no probes, means."""
        alone, *cut = rest_s.reshape(-1, len(PROBES))[:num], *rest_s.reshape(-1, len(PROBES))[num:]
        table = np.full((3, num, num), np.nan)
        tensor_bytes = [4 * int(np.prod(shape_of(self._probe((), *sizes)))) for sizes in PROBES]
        for (a, b), both in zip(itertools.permutations(range(num), 2), cut, strict=True):
            fitted = fit_link([n for n, _ in PROBES], tensor_bytes, both - 0.5 * (alone[a] + alone[b]))
            if fitted is not None:
                table[:, a, b] = fitted
        launch, latency, inverse = table
        launch_s = np.array([_mean(column, launch) for column in launch.T])
        return LinkProfile(launch_s, _filled(latency), 1.0 / np.maximum(_filled(inverse), 1e-12))

    def _probe(self, names: tuple[str, ...], tensors: int, size_bytes: int) -> Probe:
        runs, for_s = -(-self.effort.probe_runs // AGREEING), self.effort.probe_limit_s / AGREEING
        return Probe(names, self._kind, tensors, size_bytes, runs, for_s)

    def _answer(self, request: Call[A], *, is_needed: bool = False) -> A | None:
        """Return the worker's answer; None if it fails, or time is over and the answer is not needed."""
        if self._left_s < 0 and not is_needed:
            self._is_short = True
            return None
        try:
            return self.client.call(request, PROBE_LIMIT_S, COMPILING_LIMIT_S)
        except CandidateFailed:
            return None

    def _syncs(self, devices: Sequence[DeviceSpec]) -> _Group:
        """Return the group of seconds of a sync, by size and pair of devices; NaN where it does not run."""
        pairs = list(itertools.combinations(devices, 2))

        def measure() -> FloatArray:
            asked = [
                ask(Worker.sync, pair, self._probe(DeviceIndex.of(pair).openvino_names, 1, size))
                for size in SYNC_BYTES
                for pair in pairs
            ]
            found = [self._answer(each) for each in asked]
            return np.array([np.nan if one is None else one for one in found])

        key = {"what": "syncs", "kind": self._tensors, "devices": [identity(spec) for spec in devices]}
        return self._group("syncs", key, measure, _links_differ, tolerance=0.3, floor=FLOOR_S)

    def _beside(
        self, devices: Sequence[DeviceSpec], times: Sequence[DeviceProfile], whole_devices: Sequence[DeviceSpec]
    ) -> _Group:
        """Return the group of slow-downs of two devices on small models, and on a model that is not too slow."""
        num, rest = len(devices), len(devices) * (len(devices) + 1)
        slowest_s = max(math.inf if t.latency_s is None else t.latency_s for t in times)
        takes_s = sum(t.compile_s for t in times) + AGREEING * (rest + len(whole_devices)) * slowest_s
        kinds = KINDS if takes_s <= self._left_s else tuple(kind for kind in KINDS if kind != "model")

        def measure() -> FloatArray:
            found = np.full((len(KINDS), rest + len(whole_devices)), np.nan)
            for row, kind in zip(found, KINDS, strict=True):
                if kind in kinds and (one := self._answer(self._asked(devices, kind, whole_devices))) is not None:
                    row[: rest + len(one.whole_devices_s)] = figures_of(one)
            return found.ravel()

        def tables(least: FloatArray) -> FloatArray:
            return np.array([factors_of(each, num) for each in least.reshape(len(KINDS), -1)])

        def contradicts(least: FloatArray) -> bool:
            of_model = least.reshape(len(KINDS), -1)[KINDS.index("model")]
            whole_s = np.fmin.reduce(of_model[rest:], initial=np.nan)
            return contradicted(dict(zip(KINDS, tables(least), strict=True)), of_model[:num], float(whole_s))

        def differ(kept: FloatArray, seen: FloatArray) -> bool:
            small = dict(zip(KINDS, seen, strict=True)) | {"model": kept[KINDS.index("model")]}
            return are_apart(kept, seen, DOUBT) or contradicted(small, np.full(num, np.nan), np.nan)

        key = {"what": "side by side", "model": self.digest, "devices": [identity(spec) for spec in devices]}
        return self._group(SIDE_BY_SIDE, key, measure, differ, tables, tolerance=0.15, contradicts=contradicts)

    def _asked(
        self, devices: Sequence[DeviceSpec], kind: str, whole_devices: Sequence[DeviceSpec]
    ) -> Call[Beside | None]:
        return ask(Worker.contention, tuple(devices), kind, tuple(whole_devices) if kind == "model" else ())

    def _contention(self, devices: Sequence[DeviceSpec], group: _Group, found: FloatArray) -> Contention:
        """Return the slow-downs, after telling the user which are unknown."""
        tables = dict(zip(KINDS, found.reshape(len(KINDS), len(devices), len(devices)), strict=True))
        contention = Contention(tables, is_disturbed=not group.is_known)
        for a, b in itertools.combinations(range(len(devices)), 2):
            if group.is_known and np.isnan(contention.slowdown[[a, b], [b, a]]).any():
                pair = f"{devices[a].name} and {devices[b].name}"
                self.on_note(f"the slow-down of {pair} could not be measured; none is assumed")
        return contention


SIDE_BY_SIDE = "devices side by side"


@dataclass(frozen=True, eq=False)
class _Group:
    """A series of windows with its cached figures.

    ``figures_of`` derives figures from the least of the windows; ``keep`` caches them or, for None, deletes cached
    ones.
    """

    series: Series
    kept: FloatArray | None
    figures_of: Callable[[FloatArray], FloatArray]
    keep: Callable[[FloatArray | None], None]

    @property
    def is_known(self) -> bool:
        """Return whether the figures can be believed."""
        return self.series.is_confirmed or self.series.is_agreed

    def result(self) -> FloatArray:
        """Return the cached figures if windows confirm them, else those of windows, cached if they agree."""
        if self.kept is not None and self.series.is_confirmed:
            return self.kept
        found = self.figures_of(self.series.least)
        self.keep(found if self.is_known else None)
        return found


PROBES = ((1, 1 << 12), (1, 1 << 18), (1, 1 << 21), (4, 1 << 12), (4, 1 << 19))
"""Numbers of tensors that cross, and bytes of each: numbers tell a launch from a latency, sizes give the bandwidth."""

FEWEST_SIZES = 3
"""Least number of sizes, the first ones, that tell launch, latency and bytes apart."""

SYNC_BYTES = 1 << 14, 1 << 18, 1 << 21
"""Bytes of tensors that two devices exchange: small ones show the launch, large ones the bandwidth."""

PROBE_LIMIT_S = 60.0
"""Seconds after which a worker with a probe counts as hanging."""

MODEL_ERROR, ERROR_S = 0.05, 2e-6
"""Error of a fit by launch, latency and bandwidth, as a share of a probe's figure, and error in seconds of the least of
several medians.
"""

LINK_DOUBT, FLOOR_S = 2.0, 5e-5
"""Factor, and seconds, by both of which transfers and syncs must differ to contradict cached ones, or each other."""


def fit_link(
    tensors: Sequence[int], tensor_bytes: Sequence[int], extra_s: FloatArray
) -> tuple[float, float, float] | None:
    """Fit launch, latency per tensor and seconds per byte, none negative, to probes of several sizes.

    ``extra_s`` are the seconds of a probe cut in two, less the mean of those whole on either device: a launch, and
    latency and bytes for each tensor. Least squares, each probe weighed by what the model leaves out, MODEL_ERROR of
    its figure, and by the error of the figure. None where fewer than three sizes ran.
    """
    from scipy.optimize import nnls  # imported late: it loads slowly

    measured = ~np.isnan(extra_s)
    if measured.sum() < FEWEST_SIZES:
        return None
    count = np.array(tensors, dtype=np.float64)
    rows = np.stack([np.ones_like(count), count, count * np.array(tensor_bytes)], axis=1)[measured]
    scale = np.array([1e-6, 1e-6, 1e-12])
    weights = 1.0 / np.hypot(MODEL_ERROR * extra_s[measured], ERROR_S)
    solution, _ = nnls(rows * scale * weights[:, None], extra_s[measured] * weights)
    launch_s, latency_s, per_byte_s = (solution * scale).tolist()
    return launch_s, latency_s, per_byte_s


def _alone_of(beside: Series, num: int) -> FloatArray:
    """Return the seconds of the model on each of ``num`` devices alone, NaN where windows do not agree on them."""
    windows = np.array(beside.windows).reshape(len(beside.windows), len(KINDS), -1)[:, KINDS.index("model"), :num]
    return np.where(agreed(windows, beside.tolerance), least_of(windows), np.nan)


def _links_differ(kept: FloatArray, seen: FloatArray) -> bool:
    return are_apart(kept, seen, LINK_DOUBT, FLOOR_S)


def by_pair(found: FloatArray, num: int) -> FloatArray:
    """Return [S, D, D] figures of sizes and pairs [S D (D - 1) / 2] as symmetric tables, NaN on the diagonal."""
    table = np.full((len(SYNC_BYTES), num, num), np.nan)
    for (a, b), column in zip(itertools.combinations(range(num), 2), found.reshape(len(SYNC_BYTES), -1).T, strict=True):
        table[:, a, b] = table[:, b, a] = column
    return table


def _filled(table: FloatArray) -> FloatArray:
    """Return [D, D] with means in place of missing figures: of the devices' own figures, else of all."""
    own = [[_mean(np.append(row, column), table) for column in table.T] for row in table]
    return np.where(np.isnan(table), own, table)


def _mean(values: FloatArray, others: FloatArray) -> float:
    """Return the mean of the values that are numbers, else of the others that are, else 0."""
    usable = next((x[~np.isnan(x)] for x in (values, others) if not np.isnan(x).all()), np.zeros(1))
    return float(usable.mean())
