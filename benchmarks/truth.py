"""Whether what hsdag says is so: what it simulates, explains, and calls faster, and the limits that it keeps.

``simulation``: a model on two CPU devices is profiled; random placements, contiguous and scattered, are simulated from
the profile and measured in common rounds, under HETERO and under the work-conserving executor. Printed are Spearman's
and Pearson's correlation, the median relative error, and how well one half of the measurements agrees with the other.
Missed when a placement does not run, or when against the least measured times a correlation is below 0.9 or the median
error above 10%. Published beside it: DOPPLER's simulator against its engine, 0.69 and 0.79.

``explanation``: a model is placed on two CPU devices, each with memory for 80% of the weights, and the placement
explained. Under HETERO the devices have two threads and one, under our executor one each. The five units that gain most
by the explanation are moved, one at a time, to the device that it names, and all six placements are measured in common
rounds. Missed where in some case fewer than four moves slow it down beyond their intervals (95% for all five together).

``faster``: how often 'faster' is said of placements that are no faster, on a simulated machine whose noise has heavy
tails (Student's t of 3 degrees of freedom, a slow inference now and then), drift (a ramp and a slow wave),
autocorrelation over several turns (a process of Ornstein and Uhlenbeck), and bursts, all of it scaled by 1/50 (so that
rounds end early), 1/8 and 1. Printed is the share of comparisons in which anything is called faster, by finalists and
most rounds. Missed when a cell is above 3%: 2.5%, and what so many comparisons may miss it by.

``limits``: whether answers keep ``--max-difference``: their outputs by plain OpenVINO against the CPU's in single
precision. Device A computes in single precision, B keeps key-value caches in 8 bits and computes in bf16 where it can.
``parity``: models op by op on the torch engine, each fed what OpenVINO's CPU computed in f32: the largest difference by
op type, relative to the largest magnitude. Missed above 1e-4. Threads of the CPU, or with --cuda a stream on cuda:0.
Exit status 1 when a part misses its bar.

    python benchmarks/truth.py [simulation explanation faster limits parity] [--models resnet50,inception_v3] [--cuda]
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from argparse import Namespace
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from machine import ONE, options
from openvino import opset13
from scipy.stats import pearsonr, spearmanr

import hsdag
from hsdag.base.processes import CandidateFailed
from hsdag.commands.explain.explain import explain_run
from hsdag.commands.place.comparison import family_ratios
from hsdag.commands.place.run_folder import RunFolder
from hsdag.commands.place.session import Session, placed_candidate
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.colocation import widened
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.ir.placement.placement import Placement
from hsdag.models import MODELS, ModelSpec, build_model, save_model_files
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.differences import output_difference
from hsdag.runtime.measuring.inferences import InferenceSequence, make_courses
from hsdag.runtime.measuring.latency import Protocol, Ratio, measure_in_rounds
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.torch.devices import logical_devices
from hsdag.runtime.torch.graph import openvino_graph
from hsdag.runtime.torch.op import allow_tf32
from hsdag.search.options import parse_duration

# ---- simulation

CORRELATION, MEDIAN_ERROR = 0.9, 0.1
EXECUTORS = {"hetero": HeteroCosts, "work-conserving": WorkConservingCosts}


def measured_s(session: Session, problem: Problem, placements: np.ndarray, executor: str, rounds: int) -> np.ndarray:
    """[B, R] seconds of every inference, in rounds in which all placements run in turn; NaN where one fails."""
    taken: dict[int, list[float]] = {}
    for i, placement in enumerate(placements):
        try:
            session.runner.open(str(i), session.placed(problem, Plan(placement), executor))
            session.runner.run(str(i), 2)
            taken[i] = []
        except CandidateFailed as failure:
            print(f"placement {i} does not run: {failure.reason}")
    for _ in range(rounds):
        for i, times_s in taken.items():
            times_s += session.runner.run(str(i), 3)
    return np.array([taken.get(i, [np.nan] * 3 * rounds) for i in range(len(placements))])


def random_placements(problem: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """[B, U] legal placements that change device along the topological order, each seldom or often."""
    shape, leave = (count, problem.num_units), np.exp(rng.uniform(np.log(0.02), np.log(0.5), (count, 1)))
    steps = np.where(rng.random(shape) < leave, rng.integers(1, problem.num_devices, shape), 0)
    drawn = (rng.integers(problem.num_devices, size=(count, 1)) + np.cumsum(steps, axis=1)) % problem.num_devices
    is_legal = problem.supported[np.arange(problem.num_units), drawn]
    return np.where(is_legal, drawn, problem.supported.argmax(axis=1))


def agree(what: str, found_s: np.ndarray, expected_s: np.ndarray) -> bool:
    """Print Spearman's and Pearson's correlation and the median relative error; whether they meet their bars."""
    rank, linear = float(spearmanr(found_s, expected_s)[0]), float(pearsonr(found_s, expected_s)[0])
    error = float(np.median(np.abs(found_s / expected_s - 1.0)))
    print(f"{what}: Spearman {rank:.3f}, Pearson {linear:.3f}, median error {error:.1%}", flush=True)
    return min(rank, linear) >= CORRELATION and error <= MEDIAN_ERROR


def simulated_well(name: str, folder: Path, given: Namespace) -> bool:
    """Whether both executors' simulations of a model meet the bars."""
    path, met = save_model_files(name, folder / f"{name}.xml"), True
    with Session(path, resolve_devices(f"A=CPU[{ONE}],B=CPU[{ONE}]", None)) as session:
        profile = session.profile(ProfileCache(folder / "cache"), side_by_side=True)
        problem = session.problem(profile=profile)
        placements = random_placements(problem, given.placements, np.random.default_rng(1))
        ops = problem.expand(placements)
        for executor, costs in EXECUTORS.items():
            times_s = measured_s(session, problem, placements, executor, given.rounds)
            ran = np.isfinite(times_s).all(axis=1)
            simulated_s = costs.of(session.graph, profile.costs(session.graph)).latency_s(ops[ran])
            what = f"{name}, {executor}, {ran.sum()} placements, SIMULATED against measured"
            met &= agree(what, simulated_s, times_s[ran].min(axis=1)) and bool(ran.all())
            halves = times_s[ran][:, ::2].min(axis=1), times_s[ran][:, 1::2].min(axis=1)
            agree("  one half of the measurements against the other", *halves)
    return met


def simulation(given: Namespace) -> bool:
    """Whether the simulations of all models meet the bars."""
    with tempfile.TemporaryDirectory() as folder:
        met = [simulated_well(name, Path(folder), given) for name in given.models.split(",")]
    return all(met)


# ---- explanation

NUM_MOVES, LEAST_MOVES = 5, 4
DEVICES = {
    "hetero": "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]",
    "work-conserving": "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]",
}
MEMORY_SHARE = 0.8
"""Of all weights, in single precision: what each device holds."""
CASES = "resnet50/hetero,inception_v3/work-conserving,bert_base_uncased/work-conserving"
AS_PLACED = "as placed"


def compared(path: Path, executor: str, placements: dict[str, Placement], for_s: float) -> dict[str, Ratio]:
    """How many times faster than the placement itself each of the others is, in common rounds."""
    with Session(path, resolve_devices(DEVICES[executor], None), executor=executor) as session:
        for name, placement in placements.items():
            session.runner.open(name, placed_candidate(session, name, placement, executor))
        protocol = Protocol(limit_s=for_s, max_rounds=1000, interval_width=0.0, hopeless=0.0)
        names = list(placements)
        found = measure_in_rounds(session.runner.run, names, names, protocol, np.random.default_rng(0))
    for name, reason in found.failures.items():
        print(f"  {name} does not run: {reason}")
    print(f"  {AS_PLACED}: {1e3 * found.median(AS_PLACED):.2f} ms, {len(found.samples[AS_PLACED].rounds)} rounds")
    others = [name for name in found.samples if name != AS_PLACED]
    return {name: found.ratio(name, AS_PLACED, len(others)) for name in others}


def explained_well(name: str, executor: str, folder: Path, given: Namespace) -> bool:
    """Whether enough of the advice on one model holds."""
    path, run_folder = save_model_files(name, folder / f"{name}.xml"), folder / f"{name}.{executor}.run"
    limit = int(MEMORY_SHARE * widened(read_graph(path)).weight_bytes.sum())
    devices = resolve_devices(DEVICES[executor], None).all
    memory = ",".join(f"{device.name}={limit}B" for device in devices)
    how = {"executor": executor, "memory": memory, "budget": given.budget, "run_folder": run_folder}
    placed = hsdag.place(path, DEVICES[executor], **how)
    print(f"{name} under {executor}, {DEVICES[executor]}: {placed.sentence}")
    kept, placement = RunFolder.load(run_folder), placed.placement
    found = explain_run(kept, placement)
    print(f"  {len(found.gains)} moves simulated in {found.elapsed_s:.2f} s; {found.sentences[0]}")
    advice = {f"{gain.op} to {gain.other}": gain for gain in found.gains[:NUM_MOVES] if gain.gain > 0}
    placements = {AS_PLACED: placement}
    canonical = dict(zip(kept.graph.op_names, kept.graph.canonical_names, strict=True))
    for key, gain in advice.items():
        moved = placement.affinity | {canonical[op]: gain.other for op in gain.ops}
        placements[key] = placement.model_copy(update={"affinity": moved})
    ratios = compared(path, executor, placements, parse_duration(given.seconds, "--seconds"))
    held = 0
    for key in (key for key in advice if key in ratios):
        simulated, ratio = advice[key].moved / (found.value.simulated or 1.0), ratios[key]
        verdict = "slower" if ratio.is_slower else "FASTER" if ratio.is_faster else "not told apart"
        held += ratio.is_slower
        ends = f"{1 / ratio.high:.3f} to {1 / ratio.low:.3f}"
        print(f"  {key}: SIMULATED {simulated:.3f}, measured {1 / ratio.value:.3f} times as long [{ends}], {verdict}")
    print(f"  {held} of {len(advice)} moves slow the placement down beyond their intervals")
    return held >= LEAST_MOVES


def explanation(given: Namespace) -> bool:
    """Whether the advice on all models holds."""
    with tempfile.TemporaryDirectory() as name:
        met = [explained_well(*case.split("/"), Path(name), given) for case in given.cases.split(",")]
    print(f"{sum(met)} of {len(met)} cases meet the bar of {LEAST_MOVES} of {NUM_MOVES}")
    return all(met)


# ---- faster

FINALISTS, ROUNDS, SCALES = (1, 3, 5, 8), (6, 8, 12, 30, 60), (0.02, 0.125, 1.0)
FALSE_CLAIMS, NOMINAL_S = 0.03, 0.05


class Machine:
    """Inferences of candidates that all take ``NOMINAL_S`` but for the state of the machine, which has a clock."""

    def __init__(self, rng: np.random.Generator, scale: float) -> None:
        self._rng, self._scale = rng, scale
        self.now_s = self._state = self._burst_end_s = 0.0
        self._slope, self._phase = rng.normal(0.0, 2e-3), rng.uniform(0.0, 6.3)

    def run(self, _candidate: str, runs: int) -> list[float]:
        """Seconds of ``runs`` inferences; called by ``measure_in_rounds`` for every candidate alike."""
        rng = self._rng
        self._state += -0.3 * self._state + 0.03 * rng.standard_normal()
        if rng.random() < 0.02:
            self._burst_end_s = self.now_s + rng.exponential(0.5)
        slow = self._state + self._slope * self.now_s + 0.03 * np.sin(self.now_s / 5.0 + self._phase)
        slow += 0.3 * (self.now_s < self._burst_end_s)
        tails = 0.02 * rng.standard_t(3, runs) + rng.exponential(0.2, runs) * (rng.random(runs) < 0.03)
        times_s: list[float] = (NOMINAL_S * np.exp(self._scale * (slow + tails))).tolist()
        self.now_s += sum(times_s)
        return times_s


def is_faster_said(num_finalists: int, num_singles: int, rounds: int, scale: float, rng: np.random.Generator) -> bool:
    """Whether one comparison of equal candidates calls a finalist faster than the best single device."""
    here = Machine(rng, scale)
    finalists = [f"placement {i}" for i in range(num_finalists)]
    singles = [f"device {i}" for i in range(num_singles)]
    protocol = Protocol(min_rounds=min(rounds, 6), max_rounds=rounds, limit_s=1e6)
    comparison = measure_in_rounds(here.run, singles + finalists, singles, protocol, rng, clock=lambda: here.now_s)
    ratios = family_ratios(comparison, finalists, comparison.fastest(singles))
    return any(ratio.is_faster for ratio in ratios.values())


def share(num_finalists: int, num_singles: int, rounds: int, scale: float, comparisons: int) -> float:
    """Share of comparisons with a false claim."""
    rng = np.random.default_rng([num_finalists, num_singles, rounds, int(1000 * scale)])
    return float(np.mean([is_faster_said(num_finalists, num_singles, rounds, scale, rng) for _ in range(comparisons)]))


def faster(given: Namespace) -> bool:
    """Whether 'faster' is said of equals rarely enough."""
    worst = 0.0
    with ProcessPoolExecutor() as pool:
        for num_singles, scale in itertools.product(given.singles, SCALES):
            print(f"{num_singles} single devices, noise x {scale:g}; finalists in rows, rounds in columns", flush=True)
            print("   " + "".join(f"{rounds:8d}" for rounds in ROUNDS))
            for num in FINALISTS:
                cells = [(num, num_singles, rounds, scale, given.comparisons) for rounds in ROUNDS]
                shares = list(pool.map(share, *zip(*cells, strict=True)))
                worst = max(worst, *shares)
                print(f"{num:3d}" + "".join(f"{100 * s:7.2f}%" for s in shares), flush=True)
    print(f"largest share of false claims {100 * worst:.2f}% (bar {100 * FALSE_CLAIMS:g}%)")
    return worst <= FALSE_CLAIMS


# ---- limits

STATEFUL = [f"tiny_stateful_{kind}" for kind in ("llama_fp16", "llama_int8", "llama_int4", "moe_int4")]
TOKENS = "16,1+32"
UNLIKE = (
    f"A=CPU[{ONE};KV_CACHE_PRECISION=f32;DYNAMIC_QUANTIZATION_GROUP_SIZE=0],"
    "B=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=bf16;KV_CACHE_PRECISION=u8]"
)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def outputs(compiled: ov.CompiledModel, model: ov.Model, courses: tuple[InferenceSequence, ...]) -> list[np.ndarray]:
    """All outputs of all inferences, each course from an empty state."""
    request, found = compiled.create_infer_request(), []
    for course in courses:
        request.reset_state()
        for tensors in course.inferences:
            for port, tensor in zip(model.inputs, tensors, strict=True):
                request.set_tensor(port, tensor)
            request.infer()
            found += [np.array(request.get_tensor(port).data) for port in model.outputs]
    return found


def keeps_difference(path: Path, limit: float, budget: str) -> bool:
    """Whether the outputs of the answer are within the limit of the CPU's, relative to the largest value."""
    answer = hsdag.place(path, UNLIKE, tokens=TOKENS, max_difference=limit, budget=budget)
    core, model = ov.Core(), ov.Core().read_model(path)
    courses = make_courses(model, parse_scenarios((), TOKENS), 0, None)
    expected = outputs(core.compile_model(model, "CPU", EXACT), model, courses)
    found = outputs(answer.placement.compile(core, model), model, courses)
    apart = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True))
    on_b = sum(device == "B" for device in answer.placement.affinity.values())
    print(f"{path.stem}, limit {limit:.1e}: differs by {apart:.2e}, {on_b} ops on B", flush=True)
    return apart <= limit


def limits(given: Namespace) -> bool:
    """Whether all answers keep their limits."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [save_model_files(name, Path(folder) / f"{name}.xml") for name in STATEFUL]
        kept = [keeps_difference(path, limit, given.budget) for path in paths for limit in given.limits]
    print(f"{sum(kept)} of {len(kept)} runs keep their limits")
    return all(kept)


# ---- parity

PARITY = 1e-4
VOCABULARY = 100  # of the smallest model


def torch_difference(spec: ModelSpec, device: torch.device) -> float:
    """The largest difference of the ops of one model."""
    model, rng = build_model(spec.name), np.random.default_rng(0)
    inputs = [
        rng.standard_normal(given.shape, dtype=np.float32)
        if given.element_type == "f32"
        else rng.integers(0, VOCABULARY if given.name == "input_ids" else 2, given.shape)
        for given in spec.inputs
    ]
    ordered = [node for node in model.get_ordered_ops() if node.get_type_name() != "Result"]
    read = [port for node in ordered for port in node.outputs() if port.get_target_inputs()]
    graph = openvino_graph(model)
    index = {node.get_name(): v for v, node in enumerate(model.get_ordered_ops())}
    probe = ov.Model([opset13.result(port) for port in read], model.get_parameters(), "probe")
    compiled = ov.Core().compile_model(probe, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)
    values = {
        (index[port.get_node().get_name()], port.get_index()): np.array(compiled[k]) for k, port in enumerate(read)
    }
    counts, worst, left = Counter[str](), defaultdict[str, float](float), set[str]()
    for v, node in enumerate(graph.nodes):
        if node.op_type in ("Constant", "Parameter", "Result"):
            continue
        left |= set() if node.in_torch else {node.op_type}
        reads = [torch.from_numpy(values[u]).to(device) for u in node.reads]
        counts[node.op_type] += 1
        for port, got in enumerate(node.constants or node.run(reads)):
            if (v, port) in values:
                apart = output_difference([got.cpu().double().numpy()], [values[v, port]])["max_relative"]
                worst[node.op_type] = max(worst[node.op_type], np.inf if apart is None else apart)
    print(f"{spec.name}: {counts.total()} ops compared; left to OpenVINO: {', '.join(sorted(left)) or 'none'}")
    print("  " + ", ".join(f"{counts[kind]} {kind} {worst[kind]:.1e}" for kind in sorted(counts)), flush=True)
    return max(worst.values())


def parity(given: Namespace) -> bool:
    """Whether the torch engine computes the ops of all models as OpenVINO does."""
    allow_tf32(False)
    device = logical_devices(1, "cuda:0" if given.cuda else "cpu")[0].physical
    with torch.inference_mode():
        largest = max(torch_difference(spec, device) for spec in MODELS if spec.name in given.models.split(","))
    print(f"largest of all: {largest:.1e} (bar {PARITY:.0e})")
    return largest <= PARITY


PARTS = {each.__name__: each for each in (simulation, explanation, faster, limits, parity)}


def main() -> int:
    given = options(
        __doc__,
        PARTS,
        models=("resnet50,inception_v3", "of simulation and parity"),
        placements=(40, "of each model"),
        rounds=(5, "in which placements are measured"),
        cases=(CASES, "of explanation: model/executor"),
        budget=("60s", "of each placing"),
        seconds=("60s", "for which moves are measured"),
        comparisons=(4000, "of each cell of faster"),
        singles=([1, 3], "single devices, the best of which counts"),
        limits=([3e-4, 1e-3, 1e-2], "of the difference"),
        cuda=(False, "parity on cuda:0 instead of the CPU"),
    )
    met = [PARTS[name](given) for name in given.parts]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
