"""What ``--method auto`` makes of deep graphs, over what one of their blocks takes; all simulated.

Chains of Llama's block on four P100 and on eight (``p100x8``), without limits of memory: ``auto`` over blocks times the
best of one block (bar 1.015; 1.04 with every fourth block of another width, which counts as its own best), its gap to
the lower bound, and how much more that is than one block's gap (bar 1%). Then decoders of BERT's and Llama's kind,
``--layers`` deep, and ResNet-152, under sequential and work-conserving execution: ``auto`` in --short seconds over the
same in --long (bar 1.01). Then large graphs in which nothing repeats, transformers and wired networks in a row:
``auto`` in twice --seconds over the best list (bar 0.85; 0.95 for 100,000 ops of the latter), with --alone 8 the parts
one by one and what all take at least, and features (bar 10 CPU s). Then proposals a second of ``windows`` at 10,000
ops and at 250 (bar: a factor of 5). Last, in CPU seconds and with --seeds: rows of 16 and 64 equal blocks, DOPPLER's
published Llama block and three drawn transformer blocks, a block over one block's best (bar 1.015, the mean of seeds),
and DOPPLER's published Llama layer (bars: 114.5 in four of five seeds, a bound of 108.5).
``--without repeated`` leaves blocks out. Exit status 1 for a missed bar.

    python benchmarks/deep_quality.py [chains models large steps rows layer] [--blocks 4,16,64,256] [--seconds 30]
"""

from __future__ import annotations

import itertools
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from auto_quality import FIRST, in_published_units, published, solved
from machine import options
from scipy import stats
from speed import layered

from hsdag.commands.sources import workload_problem
from hsdag.features import feature_matrix
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.exact.stages import barriers_of
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.methods.repeated.blocks import part_of
from hsdag.models.diviml import RandomWiring, random_wired
from hsdag.models.networks import ModelSpec, llama_decoder, seeded
from hsdag.models.sharded_workloads import LlamaSizes, TransformerSizes, llama_block, transformer
from hsdag.models.sizes import BertSizes, DecoderSizes, ModelInput, ResNetSizes
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.platform import Platform, load_platform
from hsdag.runtime.problem.bounds import makespan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import graph_of_problem, problem_of
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator

WIDE = LlamaSizes(hidden=16_384)
BAR, BAR_OF_WIDTHS, MORE_GAP, BAR_OF_TIME, SLOWER, FEATURES_S, MOST_EXACT = 1.015, 1.04, 0.01, 1.01, 5.0, 10.0, 20
LISTS = ("heft", "cpop", "etf", "m-etf", "met", "greedy", "critical-path")
ROWS, BAR_OF_LAYER, BAR_OF_ITS_BOUND = (16, 64), 114.5, 108.5
BARS_OF_SIZE = {("transformers", 10_000): 0.85, ("transformers", 100_000): 0.85, ("wired", 100_000): 0.95}


def p100x8() -> Platform:
    """Eight P100, all of them linked as those of p100x4 are."""
    four, tables = load_platform("p100x4"), ("link_latency_s", "link_bandwidth_bytes_per_s")
    devices = tuple(each.model_copy(update={"name": f"gpu{k}"}) for k, each in enumerate(2 * four.devices))
    links = {name: np.full((8, 8), getattr(four, name)[0, 1]) for name in tables}
    return replace(four, name="p100x8", devices=devices, **links)


def chain(platform: str, sizes: list[LlamaSizes]) -> ScheduleProblem:
    """Blocks in a row, without limits of memory."""
    where = p100x8() if platform == "p100x8" else load_platform(platform)
    problem = workload_problem(llama_block(where.num_devices, *sizes), where)
    return replace(problem, memory_bytes=np.full(where.num_devices, np.inf))


def chains(given: Namespace) -> Iterator[bool]:
    """Whether each chain keeps its bars."""
    for platform in given.platforms.split(","):
        alone = {each: solved(chain(platform, [each]), "auto", given.seconds) for each in (LlamaSizes(), WIDE)}
        gap = alone[LlamaSizes()][0].gap or 0.0
        for num in map(int, given.blocks.split(",")):
            for widths in (1, 4):
                sizes = [WIDE if widths > 1 and n % widths == widths - 1 else LlamaSizes() for n in range(num)]
                own, own_s = solved(chain(platform, sizes), "auto", given.seconds, without=given.without)
                over, more = own_s / sum(alone[each][1] for each in sizes), (own.gap or 0.0) - gap
                bar = BAR if widths == 1 else BAR_OF_WIDTHS
                print(
                    f"{platform}, {num} blocks{', every fourth wider' * (widths > 1)}, {own.problem.num_ops} ops: over "
                    f"its blocks {over:.4f} (bar {bar}), gap {100 * (own.gap or 0.0):.2f}%, {100 * more:+.2f}% over a "
                    f"block's ({own.bound.argument})",
                    flush=True,
                )
                yield over <= bar and (widths > 1 or more <= MORE_GAP)


def deep_models(layers: int) -> dict[str, ModelSpec]:
    """Small networks of so many layers, and a residual one of 152, by name."""
    decoder = DecoderSizes(layers, 256, 8, 2, 688, vocabulary=2048, tokens=64)
    bert = BertSizes(layers, hidden=256, heads=4, intermediate=1024, vocabulary=1000, positions=16)
    resnet = ResNetSizes(widths=(64, 128, 256, 512), depths=(3, 8, 36, 3), stem=64, classes=1000)
    tokens = tuple(ModelInput(name, (1, 8), "i64") for name in ("input_ids", "attention_mask", "token_type_ids"))
    images, states = (ModelInput("images", (1, 3, 224, 224), "f32"),), ("last_hidden_state", "pooler_output")
    return {
        "decoder": llama_decoder("decoder", decoder),
        "bert": ModelSpec("bert", "", tokens, states, seeded("Bert", bert)),
        "resnet152": ModelSpec("resnet152", "", images, ("logits",), seeded("ResNet", resnet)),
    }


def models(given: Namespace) -> Iterator[bool]:
    """Whether a short search of a deep model is as good as a long one."""
    platform = load_platform("i9-12900k-uhd770-flex170")
    for name, spec in deep_models(given.layers).items():
        problem = analytic_costs(graph_of(spec.build(0)), platform)
        for how in map(Semantics, Execution):
            values = [solved(problem, "auto", s, how, without=given.without)[1] for s in (given.short, given.long)]
            print(
                f"{name}, {problem.num_ops} ops, {how.execution.value}: {1e3 * values[0]:.4f} ms, {given.short:g} s "
                f"over {given.long:g} s {values[0] / values[1]:.4f} (bar {BAR_OF_TIME})",
                flush=True,
            )
            yield values[0] <= BAR_OF_TIME * values[1]


def joints(before: ScheduleProblem, after: ScheduleProblem) -> IntArray:
    """[E, 2] what is not read, and the inputs that read it in a row: tile by tile, or else all of it."""
    ends = np.setdiff1d(np.arange(before.num_ops), before.edge_src).tolist()
    begins = [v for v, name in enumerate(after.op_names) if name.startswith(("x[", "stem"))]
    join = zip if len(ends) == len(begins) else itertools.product
    return np.array(list(join(ends, begins)))


def in_a_row(problems: list[ScheduleProblem]) -> ScheduleProblem:
    """Problems of the same devices one behind the other."""
    first = np.cumsum([0, *(each.num_ops for each in problems)])
    edges = [k + np.stack([each.edge_src, each.edge_dst], axis=1) for k, each in zip(first, problems, strict=False)]
    sizes = [each.edge_bytes for each in problems]
    for k, (before, after) in enumerate(itertools.pairwise(problems)):
        pairs = joints(before, after)
        edges.append(pairs + first[k : k + 2])
        sizes.append(before.output_bytes[pairs[:, 0]])
    return ScheduleProblem.from_arrays(
        np.concatenate([each.time_s for each in problems]),
        np.concatenate(edges),
        output_bytes=np.concatenate([each.output_bytes for each in problems]),
        edge_bytes=np.concatenate(sizes),
        link_latency_s=problems[0].link_latency_s,
        link_bandwidth_bytes_per_s=problems[0].link_bandwidth_bytes_per_s,
        device_names=problems[0].device_names,
    )


def least_s(row: ScheduleProblem) -> float:
    """Seconds at least: what lies between ops that all others lie before or behind adds up, exact where it is small."""
    makespan.PAIRS_EFFORT = makespan.LOADS_EFFORT = np.inf
    place, barriers = barriers_of(row)
    order = row.topological_order[place[row.topological_order] >= 0]
    total_s = 0.0
    for last, end in itertools.pairwise([-1, *place[barriers].tolist(), len(order) - 1]):
        part = part_of(row, order[max(last, 0) : last + 1], order[last + 1 : end + 1])
        is_exact = 3 < part.num_ops <= MOST_EXACT
        total_s += (solved(part, "cpsat", 15.0)[0].bound if is_exact else makespan.makespan_bound(part)).value
    return total_s


def unlike(family: str, num_ops: int, first: int = 0) -> list[ScheduleProblem]:
    """Sharded transformers of one layer each, or randomly wired networks, all of random sizes, without repetition."""
    platform, found = load_platform("p100x4"), list[ScheduleProblem]()
    while sum(each.num_ops for each in found) < num_ops:
        number, seed = len(found), first + len(found)
        if family == "transformers":
            drawn = replace(TransformerSizes.drawn(seed, 4), layers=1)
            workload = transformer(4, replace(drawn, tokens=1024 + 4 * number))
        else:
            workload = random_wired(RandomWiring("ws", 128, modules=40, channels=2, seed=seed, width=64 + number))
        found.append(workload_problem(workload, platform))
    return found


def large(given: Namespace) -> Iterator[bool]:
    """Whether ``auto`` is well ahead of lists on large graphs in which nothing repeats."""
    for family, num_ops in itertools.product(given.families.split(","), map(int, given.ops.split(","))):
        parts = unlike(family, num_ops)
        problem = in_a_row(parts)
        begin_s = time.process_time()
        feature_matrix(graph_of_problem(problem))
        features_s = time.process_time() - begin_s
        best_s, best = min((solved(problem, method, given.seconds)[1], method) for method in LISTS)
        own, own_s = solved(problem, "auto", 2 * given.seconds, without=given.without)
        over, bar = own_s / best_s, BARS_OF_SIZE.get((family, num_ops), 1.0)
        alone = [solved(each, "auto", given.alone) for each in parts] if given.alone else []
        alone_s, proven_s = sum(value_s for _, value_s in alone), least_s(problem) if alone else 0.0
        print(
            f"{family}, {problem.num_ops} ops: {best} {best_s:.6g}, auto over it {over:.4f} (bar {bar}), gap "
            f"{100 * (own.gap or 0.0):.1f}%; one by one {alone_s / best_s:.4f}, at least "
            f"{proven_s / best_s:.4f}; features {features_s:.1f} CPU s",
            flush=True,
        )
        yield over <= bar and features_s <= FEATURES_S


def steps(_: Namespace) -> Iterator[bool]:
    """Whether a step of windows costs about as much in a large graph."""
    rate = {}
    for num_ops in (250, 10_000):
        units, placer = problem_of(layered(num_ops)), make_placer("windows", is_cheap=True)
        placer.prepare(units, takes_order=True)
        recorder = RecordingEvaluator(ScheduleEvaluator.of(units), Budget(evaluations=400_000))
        begin_s = time.process_time()
        placer.search(units, recorder, Limits(num_workers=1))
        rate[num_ops] = recorder.num_evaluations / (time.process_time() - begin_s)
    slower = rate[250] / rate[10_000]
    print(
        f"windows: {rate[250]:,.0f} proposals a CPU second at 250 ops, {rate[10_000]:,.0f} at 10,000: "
        f"{slower:.2f} times (bar {SLOWER})"
    )
    yield slower <= SLOWER


def row(kind: str, num: int) -> ScheduleProblem:
    """So many equal blocks: Llama's in the units of DOPPLER's published graphs, or drawn ones on four P100."""
    if kind == "published":
        return in_published_units(llama_block(4, *[LlamaSizes()] * num), f"{num} blocks, published")
    drawn = replace(TransformerSizes.drawn(FIRST + int(kind), 4), layers=num)
    problem = workload_problem(transformer(4, drawn), load_platform("p100x4"))
    return replace(problem, memory_bytes=np.full(4, np.inf))


def rows(given: Namespace) -> Iterator[bool]:
    """Whether ``auto`` finds for each block of a row about what it finds for one in the same CPU seconds."""
    time.monotonic = time.process_time  # by which searches know their budgets
    for kind in given.rows.split(","):
        block = row(kind, 1)
        alone_s = min(solved(block, "auto", given.seconds, seed=seed)[1] for seed in range(given.seeds))
        for num in ROWS:
            problem = row(kind, num)
            values = [solved(problem, "auto", given.seconds, seed=seed)[1] for seed in range(given.seeds)]
            over = np.array(values) / (num * alone_s)
            width = stats.t.ppf(0.975, len(over) - 1) * stats.sem(over) if len(over) > 1 else np.nan
            print(
                f"{kind}, {num} blocks, {problem.num_ops} ops: a block over one block's {alone_s:.6g}: "
                f"{over.mean():.4f} +- {width:.4f} (bar {BAR}), seeds {np.round(over, 4).tolist()}",
                flush=True,
            )
            yield bool(over.mean() <= BAR)


def layer(given: Namespace) -> Iterator[bool]:
    """Whether ``auto`` finds and proves enough of the published Llama layer in so many CPU seconds."""
    time.monotonic = time.process_time
    problem = published("llama-layer")
    found = [solved(problem, "auto", given.seconds, seed=seed) for seed in range(given.seeds)]
    values, proven = np.array([value for _, value in found]), max(result.lower_bound for result, _ in found)
    print(f"llama-layer, published: {np.round(values, 2).tolist()} (bar {BAR_OF_LAYER}), bound {proven:.2f}")
    yield bool((values <= BAR_OF_LAYER).mean() >= 0.8)
    yield proven >= BAR_OF_ITS_BOUND


PARTS = {each.__name__: each for each in (chains, models, large, steps, rows, layer)}


def main() -> int:
    given = options(
        __doc__,
        PARTS,
        blocks="4,16,64,256",
        platforms="p100x4,p100x8",
        seconds=30.0,
        layers=48,
        short=10.0,
        long=600.0,
        families="transformers,wired",
        ops="10000,100000",
        alone=(0.0, "seconds for each part of a large graph by itself"),
        seeds=5,
        rows="published,0,1,2",
        without=("", "methods that auto is to do without, as a control"),
    )
    kept = [is_kept for part in given.parts for is_kept in PARTS[part](given)]
    print(f"{sum(kept)} of {len(kept)} bars are kept")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
