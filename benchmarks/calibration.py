"""Calibration: costs corrected by the measured latencies of a few placements.

Latency under HETERO (``HeteroCosts``) is linear in a factor on the op times of each device and class, an overhead per
op, a launch per submodel, and a latency and a time per byte of each link. All of these are positive, and what is known
of them beforehand is known up to a factor; so their logarithms are fitted, by regularised least squares on log latency
(the maximum a posteriori estimate under log-normal priors and noise), from the prior on.

Legend: N ops or units, D devices, C op classes, K observations, P parameters, Q logarithms fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from hsdag.ir.coarsen import CoarseGraph
from hsdag.ir.graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.submodels import SubmodelCollector
from hsdag.runtime.platforms.analytic import Roofline, roofline
from hsdag.runtime.platforms.platform import OP_CLASSES, CalibratedRow, Calibration, DeviceCalibration, Platform
from hsdag.runtime.problems.cost_model import CostModel, CostSource

Graph = ComputationGraph | CoarseGraph


@dataclass(frozen=True)
class Trust:
    """How far figures may be off, as standard deviations of natural logarithms, so 0.1 is about 10%.

    Raises ValueError when one is not positive.
    """

    observed: float = 0.02
    """Scatter of measured latencies around the model."""
    work: float = 1.5
    """Of what all op times of a device share."""
    op_class: float = 0.5
    """Of an op class around its device's factor."""
    scale: float = 1.0
    """Of all latencies or all bandwidths together, of a device's launches, and of its overhead per op."""
    single: float = 0.5
    """Of one pair's link, beside the others."""
    unknown: float = 3.0
    """Of what has no figure beforehand."""

    def __post_init__(self) -> None:
        if not all(value > 0 for value in vars(self).values()):
            raise ValueError("every share of Trust must be positive")


TOLERANCE = 1e-6
COARSE_NOISE = 0.1
MAX_LOG = 50.0
UNKNOWN_OP_OVERHEAD_S = 1e-7
UNKNOWN_LAUNCH_S = 1e-5
UNKNOWN_LATENCY_S = 1e-5
UNKNOWN_BANDWIDTH_BYTES_PER_S = 1e11
"""Where the fit starts from if the prior has no figure (0 seconds, endless bandwidth) and measurements need one."""


@dataclass(frozen=True, eq=False)
class Observation:
    """The measured latency of one placement [N], of another graph than the calibrated one if ``graph`` is given."""

    placement: IntArray  # [N]
    latency_s: float
    graph: Graph | None = None


@dataclass(frozen=True, eq=False)
class Factors:
    """The fitted figures, or the prior's where no observation has a say."""

    op_time: FloatArray  # [D, C] factor on the prior's op times
    op_overhead_s: FloatArray  # [D] per op that does work
    launch_s: FloatArray  # [D]
    link_latency_s: FloatArray  # [D, D]
    link_bandwidth_bytes_per_s: FloatArray  # [D, D]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The outcome of a calibration: costs of the graph, the factors behind them, and how well they fit.

    ``relative_errors`` is simulated over measured latency, less 1.
    """

    costs: CostModel
    factors: Factors
    simulated_s: FloatArray  # [K]
    relative_errors: FloatArray  # [K]


def calibrate(
    graph: Graph,
    prior: Platform,
    observations: Sequence[Observation],
    *,
    trust: Trust = Trust(),
) -> Calibrated:
    """Costs of ``graph`` that agree with measured latencies as far as the sequential model can.

    The analytic costs of ``prior`` are corrected; those of a profile are by ``HeteroCosts.calibrated``. What no
    observation informs keeps its value: all of it without observations, where the source stays the prior's too.
    Deterministic. O(K (N + E) + K Q^2 steps).

    Raises ValueError when an observation has another shape than its graph, a device that is absent or does not
    support an op, or a latency that is not positive.
    """
    graphs = {id(g): g for g in (graph, *(o.graph or graph for o in observations))}
    work = {key: _work(g, prior) for key, g in graphs.items()}
    rows = np.zeros((len(observations), _num_parameters(prior.num_devices)))
    for key, g in graphs.items():
        of_graph = [k for k, o in enumerate(observations) if id(o.graph or graph) == key]
        if of_graph:
            placements = _placements(g, work[key], [observations[k] for k in of_graph])
            rows[of_graph] = sequential_features(g, work[key], placements)
    measured_s = np.array([o.latency_s for o in observations], dtype=np.float64)
    if not np.all(np.isfinite(measured_s) & (measured_s > 0)):
        raise ValueError("every observed latency must be positive and finite")
    values = _fit(rows, measured_s, prior, trust) if observations else _prior_values(prior)
    factors = _factors(values, prior.num_devices)
    simulated_s = rows @ values
    is_calibrated = bool(observations) or prior.calibration is not None
    return Calibrated(
        costs=_costs(work[id(graph)], factors, CostSource.CALIBRATED if is_calibrated else CostSource.ANALYTIC),
        factors=factors,
        simulated_s=simulated_s,
        relative_errors=simulated_s / measured_s - 1.0,
    )


def platform_calibration(
    platform: Platform, factors: Factors, devices: Sequence[str], provenance: str, rows: Sequence[CalibratedRow] = ()
) -> Calibration:
    """The fitted figures of some devices in the form a platform carries; ``factors`` are on top of the platform's."""
    op_time = factors.op_time * platform.op_time
    fitted = {}
    for name in devices:
        d = platform.device_names.index(name)
        scales = dict(zip(OP_CLASSES, op_time[d].tolist(), strict=True))
        fitted[name] = DeviceCalibration(
            op_time=scales, op_overhead_s=float(factors.op_overhead_s[d]), launch_s=float(factors.launch_s[d])
        )
    return Calibration(provenance=provenance, devices=fitted, rows=tuple(rows))


def sequential_features(graph: Graph, work: Roofline, placements: IntArray) -> FloatArray:
    """[K, P] what each parameter is multiplied by in the latency of each placement [K, N] under HETERO.

    Parameters, in order: factors on op times [D, C], overhead per op [D], launch per submodel [D], latency of
    each ordered pair [D, D], seconds per byte of each ordered pair [D, D]; what crosses between submodels of one
    device costs nothing here. The product with their values is what ``HeteroCosts`` says.
    """
    num_placements, d = len(placements), work.busy_s.shape[1]
    busy_s = np.zeros((num_placements, d, len(OP_CLASSES)))
    kernels = np.zeros((num_placements, d))
    for device in range(d):
        here = (placements == device).astype(np.float64)
        busy_s[:, device] = here @ work.busy_s[:, device]
        kernels[:, device] = here @ work.num_kernels
    by_op = placements[:, graph.partition.labels] if isinstance(graph, CoarseGraph) else placements
    crossed = SubmodelCollector(graph.fine if isinstance(graph, CoarseGraph) else graph).crossings(by_op, d)
    between = ~np.eye(d, dtype=np.bool_)
    parts = (busy_s, kernels, crossed.launches, crossed.num * between, crossed.size_bytes * between)
    return np.concatenate([part.reshape(num_placements, -1) for part in parts], axis=1)


def _num_parameters(d: int) -> int:
    return d * len(OP_CLASSES) + 2 * d + 2 * d * d


def _work(graph: Graph, prior: Platform) -> Roofline:
    """The op times that factors apply to, those of the prior."""
    work = roofline(graph, prior)
    return Roofline(work.busy_s * prior.op_time, work.num_kernels, work.supported)


def _placements(graph: Graph, work: Roofline, observations: Sequence[Observation]) -> IntArray:
    """[K, N] the placements of observations of one graph, checked."""
    num_ops, d = work.supported.shape
    for observation in observations:
        placement = observation.placement
        if placement.shape != (num_ops,) or placement.min(initial=0) < 0 or placement.max(initial=0) >= d:
            raise ValueError(f"an observed placement must be [{num_ops}] of device indices below {d}")
    placements = np.stack([observation.placement for observation in observations])
    if not work.supported[np.arange(num_ops), placements].all():
        op = int(np.argmin(work.supported[np.arange(num_ops), placements].all(axis=0)))
        quotient = graph.graph if isinstance(graph, CoarseGraph) else graph
        raise ValueError(f"an observed placement has op {quotient.op_names[op]!r} on a device that does not support it")
    return placements


def _prior_values(prior: Platform) -> FloatArray:
    """[P] the parameters before any observation."""
    d = prior.num_devices
    off = ~np.eye(d, dtype=np.bool_)
    latency_s = np.where(off, prior.link_latency_s, 0.0)
    s_per_byte = np.divide(1.0, prior.link_bandwidth_bytes_per_s, out=np.zeros((d, d)), where=off)
    factors = np.ones(d * len(OP_CLASSES))
    return np.concatenate([factors, prior.op_overhead_s, prior.launch_s, latency_s.ravel(), s_per_byte.ravel()])


@dataclass(frozen=True, eq=False)
class _Scheme:
    """log parameter = log start + spread z, z standard normal beforehand; only ``fitted`` parameters move."""

    start: FloatArray  # [P]
    spread: FloatArray  # [P, Q]
    fitted: BoolArray  # [P]


def _scheme(rows: FloatArray, prior_values: FloatArray, d: int, trust: Trust) -> _Scheme:
    """Shared factors: op classes share their device's, links share one; overheads have their own."""
    c, pairs = len(OP_CLASSES), d * d
    sizes = [d * c, d, d, pairs, pairs]
    unknown = np.repeat(
        [1.0, UNKNOWN_OP_OVERHEAD_S, UNKNOWN_LAUNCH_S, UNKNOWN_LATENCY_S, 1.0 / UNKNOWN_BANDWIDTH_BYTES_PER_S],
        sizes,
    )
    known = prior_values > 0
    own = np.repeat([trust.op_class, trust.scale, trust.scale, trust.single, trust.single], [d * c, d, d, pairs, pairs])
    shared = np.zeros((len(own), d + 2))
    shared[np.arange(d * c), np.repeat(np.arange(d), c)] = trust.work
    shared[-2 * pairs : -pairs, d] = trust.scale
    shared[-pairs:, d + 1] = trust.scale
    informed = np.asarray(rows.any(axis=0), dtype=np.bool_)
    seen = informed[d * c + d : d * c + 2 * d]  # devices that an observation launched something on
    both_seen = (seen[:, None] & seen & ~np.eye(d, dtype=np.bool_)).reshape(-1)
    sent, sent_bytes = informed[-2 * pairs : -pairs].any(), informed[-pairs:].any()
    fitted = informed.copy()
    fitted[: d * c] = np.repeat(seen, c)
    fitted[-2 * pairs :] = np.concatenate([both_seen & sent, both_seen & sent_bytes])
    spread = np.concatenate([shared, np.diag(np.where(known, own, trust.unknown))], axis=1)
    return _Scheme(np.where(known, prior_values, unknown), spread * fitted[:, None], fitted)


def _fit(rows: FloatArray, measured_s: FloatArray, prior: Platform, trust: Trust) -> FloatArray:
    """[P] the parameters that make measured latencies and priors together most likely."""
    prior_values = _prior_values(prior)
    scheme = _scheme(rows, prior_values, prior.num_devices, trust)
    moving = scheme.spread.any(axis=0)
    spread, active = scheme.spread[:, moving], rows.any(axis=0)
    z = _most_likely(rows[:, active] * scheme.start[active], spread[active], np.log(measured_s), trust.observed)
    return np.where(scheme.fitted, scheme.start * np.exp(np.clip(spread @ z, -MAX_LOG, MAX_LOG)), prior_values)


def _most_likely(parts_s: FloatArray, spread: FloatArray, log_s: FloatArray, noise: float) -> FloatArray:
    """[Q] the z that minimises ||(log(parts_s exp(spread z)) - log_s) / noise||^2 + ||z||^2.

    ``parts_s`` [K, P] are the latencies' parts at z = 0. Starts at the prior with noise of 0.1 at least, and goes
    on from there with less: small noise makes a narrow valley that is slow to follow from afar.
    """
    z = np.zeros(spread.shape[1])
    levels = [noise]
    while levels[-1] < COARSE_NOISE:
        levels.append(10.0 * levels[-1])
    for level in reversed(levels):
        known = (parts_s, spread, log_s, level)
        z = least_squares(_errors, z, _slopes, method="lm", ftol=TOLERANCE, args=known).x
    return z


def _errors(z: FloatArray, parts_s: FloatArray, spread: FloatArray, log_s: FloatArray, noise: float) -> FloatArray:
    """[K + Q] weighted errors of log latency, and of z."""
    return np.concatenate([(np.log(_now_s(z, parts_s, spread).sum(axis=1)) - log_s) / noise, z])


def _slopes(z: FloatArray, parts_s: FloatArray, spread: FloatArray, log_s: FloatArray, noise: float) -> FloatArray:  # noqa: ARG001
    """[K + Q, Q] derivatives of the errors by z."""
    now_s = _now_s(z, parts_s, spread)
    return np.concatenate([(now_s / now_s.sum(axis=1)[:, None]) @ spread / noise, np.eye(len(z))])


def _now_s(z: FloatArray, parts_s: FloatArray, spread: FloatArray) -> FloatArray:
    """[K, P] the parts of the latencies at z."""
    now_s: FloatArray = parts_s * np.exp(np.clip(spread @ z, -MAX_LOG, MAX_LOG))
    return now_s


def _factors(values: FloatArray, d: int) -> Factors:
    """The parameters by name; the diagonals of link tables cost nothing."""
    c = d * len(OP_CLASSES)
    op_time, op_overhead_s, launch_s, latency_s, s_per_byte = np.split(values, [c, c + d, c + 2 * d, c + 2 * d + d * d])
    costly = s_per_byte.reshape(d, d)
    return Factors(
        op_time=op_time.reshape(d, -1),
        op_overhead_s=op_overhead_s,
        launch_s=launch_s,
        link_latency_s=latency_s.reshape(d, d),
        link_bandwidth_bytes_per_s=np.divide(1.0, costly, out=np.full((d, d), np.inf), where=costly > 0),
    )


def _costs(work: Roofline, factors: Factors, source: CostSource) -> CostModel:
    return CostModel(
        time_s=work.time_s(factors.op_time, factors.op_overhead_s),
        launch_s=factors.launch_s,
        link_latency_s=factors.link_latency_s,
        link_bandwidth_bytes_per_s=factors.link_bandwidth_bytes_per_s,
        source=source,
    )
