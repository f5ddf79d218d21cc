"""Recipes of HSDAG's tables: models of the zoo on the paper's machine, simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hsdag.commands.profile import assumed_costs
from hsdag.commands.reproducing.base import TIMED, Effort, Ours, Recipe
from hsdag.commands.reproducing.searches import (
    CONTROLS,
    SIMPLE_CONTROLS,
    Absent,
    Search,
    SearchTable,
    Single,
    in_seconds,
)
from hsdag.commands.workload import with_devices
from hsdag.ir.build import read_graph
from hsdag.ir.coarsen import CoarseGraph, coarsen, placement_units
from hsdag.ir.colocation import colocate
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import ComputationGraph, FloatArray
from hsdag.ir.placement import DeviceRecord, Placement
from hsdag.models import build_model
from hsdag.placers.registry import make_placer
from hsdag.reports.paper_tables import find_table
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Semantics
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

if TYPE_CHECKING:
    import openvino as ov

PLATFORM, CPU, GPU = "i9-12900k-uhd770-flex170", "CPU", "GPU.1"
SEQUENTIAL, WORK_CONSERVING = Semantics(Execution.SEQUENTIAL), Semantics(Execution.WORK_CONSERVING)
ABOUT = (
    "The machine is simulated: CPU-only and GPU-only are Table 2's, by construction, and its other rows were not used. "
    "Ops run one after another, as under HETERO. The integrated GPU takes no part, as in the paper."
)
BESIDE = f"{ABOUT} In the columns that say so, devices work side by side, as under the work-conserving executor."
EXPERT = {"expert_every": "20"}
SIDE_BY_SIDE = {
    f"{name}, side by side": Search(method, changes=changes, semantics=WORK_CONSERVING)
    for name, method, changes in (
        ("HSDAG", "hsdag", {}),
        ("HSDAG with an expert", "hsdag", EXPERT),
        ("the same, learning off", "hsdag", {**EXPERT, "learning_rate": "1e-100", "last_learning_rate": "0"}),
        ("random draws", "random", {}),
        ("annealing", "sa", {}),
    )
}
OF_OPENVINO = Absent("OpenVINO's own choice needs the real devices")
WITHOUT = {"output shape": "output_shape", "node ID": "node_id", "graph structure": "structure"}


def on_paper_machine(
    model: str, units_of: Callable[[ComputationGraph], CoarseGraph] = placement_units
) -> ScheduleProblem:
    """A model of the zoo on the paper's CPU and discrete GPU, each of which takes what Table 2 says for all of it.

    The platform's costs say how this time divides among the ops.
    """
    platform = with_devices(load_platform(PLATFORM), (CPU, GPU))
    problem = assumed_costs(build_model(model), platform, name=model, units_of=units_of)
    table = find_table("hsdag-2")
    measured_s = np.array([float(str(table.figure(model, column))) for column in ("CPU-only", "GPU-only")])
    return replace(problem, time_s=problem.time_s * (measured_s - problem.launch_s) / problem.time_s.sum(axis=0))


def in_sets(model: str) -> ScheduleProblem:
    """The same with co-location sets as units: all that a placement may part."""
    return on_paper_machine(model, colocation_sets)


def colocation_sets(graph: ComputationGraph) -> CoarseGraph:
    """A graph of the sets of ops that a device has to hold together."""
    constraints = colocate(graph)
    return coarsen(graph, constraints.sets, constraints.edge_kept)


class GraphStatistics(Recipe):
    """Table 1."""

    kind = "computed"
    about = (
        "Nodes and edges of the zoo's models as OpenVINO reads them; the mean degree is edges over nodes. "
        "BERT comes from another converter than the paper's."
    )

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:  # noqa: ARG002
        """Statistics of a model's graph."""
        watcher.on_phase(f"building {name}")
        begin_s = time.monotonic()
        graph = read_graph(build_model(name))
        took_s = time.monotonic() - begin_s
        found = {"nodes": graph.num_ops, "edges": graph.num_edges, "mean degree": graph.mean_degree}
        for column in columns:
            yield column, Ours(float(found[column]), elapsed_s=took_s / len(columns))


class Outputs(Recipe):
    """Table 4: what a placement computes, against the CPU."""

    kind = "measured"
    about = (
        "A placement that hsdag found on the paper's machine, simulated, is run here by two CPU devices, one in the "
        "GPU's place, on random inputs; weights are random, too, and all results are compared."
    )

    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Differences of outputs."""
        if name != "CPU and HSDAG":
            yield from ((column, Ours(note="there is no GPU to compare with")) for column in columns)
            return
        watcher.on_phase("building, placing and running bert_base_uncased")
        begin_s = time.monotonic()
        model, problem = build_model("bert_base_uncased"), on_paper_machine("bert_base_uncased")
        options = SolveOptions(
            "hsdag", budget_s=effort.budget_s, max_evaluations=effort.max_evaluations, semantics=SEQUENTIAL
        )
        quiet = Watcher(should_stop=watcher.should_stop)
        found = solve(problem, make_placer("hsdag", is_cheap=True), options, quiet)
        if found.value_s is None:
            raise SearchError("hsdag found no placement to compare")
        whole, placed = outputs_of(model, on_two_cpu_devices(found.placement()))
        took_s, difference = time.monotonic() - begin_s, placed - whole
        cosine = float(whole @ placed) / float(np.linalg.norm(whole) * np.linalg.norm(placed))
        figures = {
            "mean squared error": float(np.mean(difference**2)),
            "cosine similarity": cosine,
            "L2 norm": float(np.linalg.norm(difference)),
        }
        used = len(set(found.placement().affinity.values()))
        note = "" if used > 1 else "the placement that was found is on one device"
        for column in columns:
            yield column, Ours(figures[column], note=note, elapsed_s=took_s / len(columns))


def on_two_cpu_devices(placement: Placement) -> Placement:
    """The placement with a second CPU device, of one thread, in the GPU's place."""
    properties = {"INFERENCE_NUM_THREADS": "1", "ENABLE_CPU_PINNING": "False"}
    second = DeviceRecord(name="SECOND", plugin="CPU", properties=properties)
    affinity = {op: CPU if device == CPU else second.name for op, device in placement.affinity.items()}
    devices = [DeviceRecord(name=CPU, plugin="CPU"), second]
    return placement.model_copy(update={"affinity": affinity, "devices": devices})


def outputs_of(model: ov.Model, placement: Placement) -> tuple[FloatArray, FloatArray]:
    """All results of a model, flat, on the CPU and under a placement, for the same random inputs."""
    import openvino as ov

    from hsdag.runtime.measuring.inferences import make_inputs

    core = ov.Core()
    inputs = make_inputs(model, 0, None)
    compiled = core.compile_model(model, CPU), placement.compile(core, model)
    whole, placed = (each(inputs) for each in compiled)
    return tuple(  # type: ignore[return-value]
        np.concatenate([np.asarray(value, dtype=np.float64).ravel() for value in found.values()])
        for found in (whole, placed)
    )


RECIPES: dict[str, Recipe] = {
    "hsdag-1": GraphStatistics(),
    "hsdag-2": SearchTable(
        in_sets,
        {
            "CPU-only": Single(CPU),
            "GPU-only": Single(GPU),
            "OpenVINO-CPU": OF_OPENVINO,
            "OpenVINO-GPU": OF_OPENVINO,
            "Placeto": Search("placeto"),
            "RNN-based": Search("rnn"),
            "HSDAG": Search("hsdag"),
            **SIDE_BY_SIDE,
        },
        BESIDE,
        in_seconds,
        semantics=SEQUENTIAL,
        controls=(*CONTROLS, *SIDE_BY_SIDE),
    ),
    "hsdag-3": SearchTable(
        in_sets,
        {
            "CPU-only": Single(CPU),
            "HSDAG": Search("hsdag"),
            **{f"without {what}": Search("hsdag", changes={option: "false"}) for what, option in WITHOUT.items()},
        },
        ABOUT,
        in_seconds,
        semantics=SEQUENTIAL,
        controls=SIMPLE_CONTROLS,
    ),
    "hsdag-4": Outputs(),
    "hsdag-5": SearchTable(
        on_paper_machine,
        {
            name: Search(method, "paper", shows_time=True)
            for name, method in (("Placeto", "placeto"), ("RNN-based", "rnn"), ("HSDAG", "hsdag"))
        },
        f"Seconds of a search with the presets of the papers; plans are simulated here, and measured there. {ABOUT}",
        in_seconds,
        semantics=SEQUENTIAL,
        controls=(),
        kind=TIMED,
    ),
}
