"""Profiles of pairs of devices: transfers, syncs, and how much devices slow each other down.

Legend: D devices, S sizes of tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hsdag.base.processes import COMPILING_LIMIT_S, CandidateFailed
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.measuring.caches import identity
from hsdag.runtime.measuring.effort import NO_TIME, PROBES, ProfilingRun
from hsdag.runtime.measuring.measurer import Measurer, OpenVinoMeasurer
from hsdag.runtime.measuring.messages import Call, Probe, ask
from hsdag.runtime.measuring.probes import CROSSING_CHANNELS, crossing_shapes
from hsdag.runtime.measuring.profile import KINDS, Contention, DeviceProfile, LinkProfile, figures, numbers
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
)

A = TypeVar("A")

SIDE_BY_SIDE = "devices side by side"

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


class PairProfiler:
    """A profiler of pairs of devices, which measures series of figures window by window."""

    def __init__(self, run: ProfilingRun) -> None:
        self._run = run
        self._is_short = False  # whether time was over before all was measured
        flops, types = run.graph.flops, run.graph.op_types
        of_products, of_images = (flops[[t == kind for t in types]] for kind in ("MatMul", "Convolution"))
        self._kind = "image" if len(of_images) and of_images.sum() >= of_products.sum() else "matrix"
        self._tensors = f"{self._kind} of {CROSSING_CHANNELS} channels"

    def links(self, devices: Sequence[DeviceSpec]) -> Series:
        """Return the series of the seconds of every probe beside its ops: on each device, and cut between each two."""
        names = DeviceIndex.of(devices).openvino_names
        targets = [*((name,) for name in names), *itertools.permutations(names, 2)]
        probes = [[self._probe(pair, *sizes) for pair in targets] for sizes in PROBES]

        def measure() -> FloatArray:
            probed = [
                [self._answer(ask(Measurer.probe, probe), is_needed=k < FEWEST_SIZES) for probe in row]
                for k, row in enumerate(probes)
            ]
            return np.array([[np.nan if one is None else one.rest_s for one in row] for row in probed]).T.ravel()

        return self._of_tensors("transfers", "links", devices, measure)

    def link_profile(self, rest_s: FloatArray, syncs_s: FloatArray | None, num: int) -> LinkProfile:
        """Return launches, latencies and bandwidths under HETERO, and syncs; for a device that runs no probes, means.

        Args:
            rest_s: Figures of ``links``.
            syncs_s: Figures of ``syncs``, None where syncs were not measured.
            num: Number of devices.
        """
        alone_s, cut_s = np.split(rest_s.reshape(-1, len(PROBES)), [num])
        table = np.full((3, num, num), np.nan)
        tensor_bytes = [4 * int(np.prod(crossing_shapes(self._probe((), *sizes)))) for sizes in PROBES]
        for (a, b), both_s in zip(itertools.permutations(range(num), 2), cut_s, strict=True):
            fitted = fit_link([n for n, _ in PROBES], tensor_bytes, both_s - 0.5 * (alone_s[a] + alone_s[b]))
            if fitted is not None:
                table[:, a, b] = fitted
        launch, latency, inverse = table
        launch_s = np.array([_mean(column, launch) for column in launch.T])
        costs = launch_s, _filled(latency), 1.0 / np.maximum(_filled(inverse), 1e-12)
        return LinkProfile(*costs) if syncs_s is None else LinkProfile(*costs, SYNC_BYTES, by_pair(syncs_s, num))

    def syncs(self, devices: Sequence[DeviceSpec]) -> Series:
        """Return the series of seconds of a sync, by size and pair of devices; NaN where it does not run."""
        pairs = list(itertools.combinations(devices, 2))

        def measure() -> FloatArray:
            asked = [
                ask(OpenVinoMeasurer.sync, pair, self._probe(DeviceIndex.of(pair).openvino_names, 1, size))
                for size in SYNC_BYTES
                for pair in pairs
            ]
            answers_s = [self._answer(request) for request in asked]
            return np.array([np.nan if seconds is None else seconds for seconds in answers_s])

        return self._of_tensors("syncs", "syncs", devices, measure)

    def beside(
        self, devices: Sequence[DeviceSpec], times: Sequence[DeviceProfile], whole_devices: Sequence[DeviceSpec]
    ) -> Series:
        """Return the series of slow-downs of two devices on small models, and on a model that is not too slow."""
        num, rest = len(devices), len(devices) * (len(devices) + 1)
        slowest_s = max(math.inf if t.latency_s is None else t.latency_s for t in times)
        takes_s = sum(t.compile_s for t in times) + AGREEING * (rest + len(whole_devices)) * slowest_s
        kinds = KINDS if takes_s <= self._run.left_s else tuple(kind for kind in KINDS if kind != "model")

        def measure() -> FloatArray:
            window = np.full((len(KINDS), rest + len(whole_devices)), np.nan)
            for row, kind in zip(window, KINDS, strict=True):
                alone = tuple(whole_devices) if kind == "model" else ()
                request = ask(Measurer.contention, tuple(devices), kind, alone)
                if kind in kinds and (beside := self._answer(request)) is not None:
                    row[: rest + len(beside.whole_devices_s)] = figures_of(beside)
            return window.ravel()

        def tables(least: FloatArray) -> FloatArray:
            return np.array([factors_of(of_kind, num) for of_kind in least.reshape(len(KINDS), -1)])

        def contradicts(least: FloatArray) -> bool:
            of_model = least.reshape(len(KINDS), -1)[KINDS.index("model")]
            whole_s = np.fmin.reduce(of_model[rest:], initial=np.nan)
            return contradicted(dict(zip(KINDS, tables(least), strict=True)), of_model[:num], float(whole_s))

        def differ(cached: FloatArray, seen: FloatArray) -> bool:
            small = dict(zip(KINDS, seen, strict=True)) | {"model": cached[KINDS.index("model")]}
            return are_apart(cached, seen, DOUBT) or contradicted(small, np.full(num, np.nan), np.nan)

        key = {"what": "side by side", "model": self._run.digest, "devices": [identity(spec) for spec in devices]}
        return Series(
            SIDE_BY_SIDE,
            measure,
            tolerance=0.15,
            refutes=differ,
            contradicts=contradicts,
            cached=self._cached(key),
            derive=tables,
            keep=partial(self._keep, SIDE_BY_SIDE, key),
        )

    def contention(self, devices: Sequence[DeviceSpec], beside: Series, factors: FloatArray) -> Contention:
        """Return the slow-downs, the result of ``beside``, after telling the user which are unknown."""
        tables = dict(zip(KINDS, factors.reshape(len(KINDS), len(devices), len(devices)), strict=True))
        contention = Contention(tables, is_disturbed=not beside.is_known)
        for a, b in itertools.combinations(range(len(devices)), 2):
            if beside.is_known and np.isnan(contention.slowdown[[a, b], [b, a]]).any():
                pair = f"{devices[a].name} and {devices[b].name}"
                self._run.on_note(f"the slow-down of {pair} could not be measured; none is assumed")
        return contention

    def _of_tensors(
        self, what: str, name: str, devices: Sequence[DeviceSpec], measure: Callable[[], FloatArray]
    ) -> Series:
        """Return a series of seconds that tensors take between devices, cached under a ``name``."""
        key = {"what": name, "kind": self._tensors, "devices": [identity(spec) for spec in devices]}
        differ = partial(are_apart, times=LINK_DOUBT, floor=FLOOR_S)
        keep = partial(self._keep, what, key)
        return Series(what, measure, 0.3, differ, floor=FLOOR_S, cached=self._cached(key), keep=keep)

    def _cached(self, key: Mapping[str, Any]) -> FloatArray | None:
        """Return the figures that are cached under a key, None if there are none."""
        stored = self._run.cache.get(key, self._run.effort.probe_limit_s)
        return None if stored is None else numbers(stored["figures"])

    def _keep(self, what: str, key: Mapping[str, Any], table: FloatArray | None) -> None:
        """Cache figures; if there are none to be believed, delete the cached ones and tell the user."""
        if table is not None and not self._is_short:
            self._run.cache.put(key, {"figures": figures(table)}, self._run.effort.probe_limit_s)
            return
        self._run.cache.drop(key)
        if self._is_short:
            self._run.on_note(f"{NO_TIME} {what} well")
        else:
            self._run.on_note(f"measurements of {what} do not agree with each other; they are not kept")

    def _probe(self, names: tuple[str, ...], tensors: int, size_bytes: int) -> Probe:
        runs, for_s = -(-self._run.effort.probe_runs // AGREEING), self._run.effort.probe_limit_s / AGREEING
        return Probe(names, self._kind, tensors, size_bytes, runs, for_s)

    def _answer(self, request: Call[A], *, is_needed: bool = False) -> A | None:
        """Return the worker's answer; None if it fails, or time is over and the answer is not needed."""
        if self._run.left_s < 0 and not is_needed:
            self._is_short = True
            return None
        try:
            return self._run.client.call(request, PROBE_LIMIT_S, COMPILING_LIMIT_S)
        except CandidateFailed:
            return None


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


def alone_of(beside: Series, num: int) -> FloatArray:
    """Return the seconds of the model on each of ``num`` devices alone, NaN where windows do not agree on them."""
    windows = np.array(beside.windows).reshape(len(beside.windows), len(KINDS), -1)[:, KINDS.index("model"), :num]
    return np.where(agreed(windows, beside.tolerance), least_of(windows), np.nan)


def by_pair(syncs_s: FloatArray, num: int) -> FloatArray:
    """Return [S, D, D] figures of sizes and pairs [S D (D - 1) / 2] as symmetric tables, NaN on the diagonal."""
    table = np.full((len(SYNC_BYTES), num, num), np.nan)
    columns = syncs_s.reshape(len(SYNC_BYTES), -1).T
    for (a, b), column in zip(itertools.combinations(range(num), 2), columns, strict=True):
        table[:, a, b] = table[:, b, a] = column
    return table


def _filled(table: FloatArray) -> FloatArray:
    """Return [D, D] with means in place of missing figures: of the devices' own figures, else of all."""
    means = [[_mean(np.append(row, column), table) for column in table.T] for row in table]
    return np.where(np.isnan(table), means, table)


def _mean(values: FloatArray, others: FloatArray) -> float:
    """Return the mean of the values that are numbers, else of the others that are, else 0."""
    usable = next((x[~np.isnan(x)] for x in (values, others) if not np.isnan(x).all()), np.zeros(1))
    return float(usable.mean())
