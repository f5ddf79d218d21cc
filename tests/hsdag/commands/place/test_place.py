"""What place is asked: executors, a start, pins, memory, objectives; what is refused, and what searches survive."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import hsdag
from hsdag.base.errors import OptionError, SearchError
from hsdag.base.processes import CandidateFailed, WorkerClient
from hsdag.commands.place import place
from hsdag.commands.place.comparison import final_comparison
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.place import run_place
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.session import Session, placed_candidate
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.machine.devices import DeviceSet, resolve_devices
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.measuring.messages import Call
from hsdag.runtime.objectives import find_objective
from hsdag.search.options import PlaceOptions
from tests.hsdag.ir.growing import chain_model, saved
from tests.hsdag.runtime.executor.hand_backend import await_until
from tests.placements import by_hand, halves

DEVICES = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]"


def test_searches_and_profiles_know_a_model_without_names_again(onnx_file: Path) -> None:
    devices, inputs = resolve_devices("CPU", None), ModelInputs({"x": (2, 3, 8, 8)})
    with Session(onnx_file, devices, inputs) as first, Session(onnx_file, devices, inputs) as second:
        assert first.graph.op_names != second.graph.op_names
        assert first.model_record == second.model_record
        assert first.digest == second.digest


def test_a_start_on_a_device_that_is_not_searched_over_is_refused(tiny_resnet: Path, tmp_path: Path) -> None:
    graph = read_graph(tiny_resnet)
    by_hand(graph, parse_devices(DEVICES), ["A"] + ["B"] * (graph.num_ops - 1)).save(tmp_path / "start.json")
    with pytest.raises(OptionError, match="uses device 'B' as its file describes it, which is not searched"):
        hsdag.place(tiny_resnet, "A=CPU[INFERENCE_NUM_THREADS=1],C=CPU", start=tmp_path / "start.json")


def test_a_start_that_is_the_answer_is_written_as_its_file_says(
    tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = read_graph(tiny_resnet)
    start = halves(graph, parse_devices(DEVICES), seed=7)
    device = list(start.affinity.values())
    monkeypatch.setattr(place, "final_comparison", lambda *a, **b: replace(final_comparison(*a, **b), answer="start"))
    options = PlaceOptions(devices=DEVICES, method="best-device", reward="measured", start=start)
    found = run_place(tiny_resnet, options)
    assert found.answer.ops == {"A": device.count("A"), "B": device.count("B")}
    assert "it is the one to start with" in found.sentence
    assert (found.placement.affinity, found.placement.method, found.placement.seed) == (start.affinity, "by hand", 7)


@pytest.mark.slow
def test_pinned_ops_are_where_they_were_pinned_and_devices_that_break_a_pin_are_measured_and_no_answer(
    tmp_path: Path,
) -> None:
    """The first product is pinned to the second device, the last one to the first."""
    chain = saved(chain_model(6, 64), tmp_path)
    products = [op for op in ov.Core().read_model(chain).get_ordered_ops() if op.get_type_name() == "MatMul"]
    first, last = products[0].get_friendly_name(), products[-1].get_friendly_name()
    pinned = hsdag.place(
        chain, DEVICES, method="heft", reward="simulated", budget="15s", pins=[f"{first}=B", f"{last}=A"],
        data_shape="1,64", infer_precision="f32",
    )  # fmt: skip
    by_name = {name: pinned.placement.affinity[op] for op, name in pinned.placement.names.items()}
    assert (by_name[first], by_name[last]) == ("B", "A")
    assert {"A", "B", "CPU"} <= {row.name for row in pinned.rows}
    assert "placement" in pinned.answer.name
    assert "is ruled out: it breaks pins" in pinned.sentence


ONE_THREAD = "CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]"
IN_F32 = ",".join(f"{name}={ONE_THREAD}" for name in "AB")
SHAPES = ("16,64", "1,64@3")
LAYERS, WIDTH = 12, 64
WEIGHT_BYTES = 4 * WIDTH * WIDTH


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(chain_model(LAYERS, WIDTH), tmp_path_factory.mktemp("layers"))


@pytest.fixture(scope="module")
def forced(layers: Path) -> PlaceResult:
    """Each device has memory for nine of the twelve layers, results included."""
    limit = int(9.5 * WEIGHT_BYTES)
    memory = ",".join(f"{name}={limit}" for name in ("A", "B", "CPU"))
    return hsdag.place(
        layers, IN_F32, method="pipeline", reward="simulated", budget="60s", data_shape=SHAPES, memory=memory
    )


@pytest.mark.slow
def test_a_model_that_no_device_holds_is_split_once_within_the_memory_of_both(forced: PlaceResult) -> None:
    assert forced.answer.submodels == 2
    held = [forced.weight_bytes[name] / WEIGHT_BYTES for name in "AB"]
    assert sum(held) == LAYERS
    assert max(held) <= 9 < LAYERS
    assert all(
        "processors" in warning or "gave much less" in warning for warning in forced.warnings
    )  # those of a busy machine


@pytest.mark.slow
def test_devices_that_are_too_small_for_the_model_are_no_answer_and_the_reason_is_told(forced: PlaceResult) -> None:
    for name in ("A", "B", "CPU"):
        assert "the model's weights and state take 197 kB, and it has 156 kB" in forced.failures[name]
    assert forced.sentence.startswith("No device has the memory for the whole model; the placement does")
    assert forced.placement.speedup is None


@pytest.mark.slow
def test_a_placement_of_a_dynamic_model_holds_its_scenarios_and_fits_the_model_as_it_is(forced: PlaceResult) -> None:
    assert forced.placement.data_shapes == ("x[16,64]", "x[1,64]@3")
    assert forced.placement.model.input_shapes == {}
    forced.placement.apply(chain_model(LAYERS, WIDTH))


def test_memory_that_cannot_be_met_is_refused_at_once_with_the_least_that_could_do(layers: Path) -> None:
    with pytest.raises(OptionError, match=r"allows A and B 160 kB together; they need at least 197 kB"):
        hsdag.place(layers, IN_F32, data_shape=SHAPES, memory="A=100KB,B=60KB")


ROUNDS = Protocol(6, 8, 0.02)
OPTIONS = PlaceOptions(
    partition_cpu=2,
    method="sa",
    budget_s=60.0,
    max_evaluations=6,
    precision="f32",  # in half precision outputs of splits may differ by too much to be the answer
    protocol=ROUNDS,
)


@pytest.mark.slow
def test_a_placement_for_memory_shares_the_weights_out_and_says_so_in_its_words(tiny_bert: Path) -> None:
    for_memory = run_place(tiny_bert, replace(OPTIONS, objective=find_objective("memory")))
    weights = float(read_graph(tiny_bert).weight_bytes.sum())
    alone = next(row.median for row in for_memory.rows if row.name == "CPU_0")
    answer = next(row.median for row in for_memory.rows if row.is_answer)
    assert alone > weights / 2
    assert answer < 0.9 * alone
    assert len(for_memory.placement.used_devices) == 2
    assert "peaks of memory are simulated" in for_memory.warnings[0]
    assert (for_memory.objective, for_memory.unit) == ("memory", "B")
    assert (for_memory.placement.latency, for_memory.placement.baselines) == (None, {})


QUICK = Protocol(min_rounds=4, max_rounds=6, turn_s=0.02)
ONE = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": "NO"}


@pytest.fixture(scope="module")
def split(tiny_resnet: Path) -> Placement:
    """A placement file's content for the work-conserving executor: half of tiny_resnet on either of two devices."""
    graph = read_graph(tiny_resnet)
    devices = [DeviceSpec(name, "CPU", ONE) for name in ("CPU_A", "CPU_B")]
    return halves(graph, devices, executor="work-conserving")


def test_a_split_is_compared_with_hetero_and_the_answer_names_the_executor_that_ran_it_and_has_every_op(
    tiny_resnet: Path,
) -> None:
    options = PlaceOptions(
        partition_cpu=2,
        method="sa",
        reward="measured",  # a profile may say that devices slow each other down too much for any split
        executor="work-conserving",
        budget_s=300.0,
        max_evaluations=5,
        finalists=3,  # the best one may turn out to have all parts on one device
        protocol=QUICK,
    )
    placed = run_place(tiny_resnet, options)
    rows = {row.name: row for row in placed.rows}
    assert {"placement 1", "HETERO:placement 1", "CPU_0", "CPU"} <= set(rows) | set(placed.failures)
    compared = [name for name in placed.finalists if name in rows]
    assert compared
    assert all(rows[name].ops == rows[f"HETERO:{name}"].ops for name in compared)
    assert placed.tally.tried == 5
    divided = {op for region in placed.placement.shards or () for op in region.ops}
    assert set(placed.placement.affinity) | divided == set(read_graph(tiny_resnet).canonical_names)
    is_split = placed.answer.name.startswith(("placement", "shards"))
    assert placed.placement.executor == ("work-conserving" if is_split else "hetero")


def test_a_file_runs_by_its_priorities_and_the_cut_of_its_objective_and_hetero_without(
    split: Placement, tiny_resnet: Path
) -> None:
    ranked = split.model_copy(update={"priority": {op: k for k, op in enumerate(reversed(split.affinity))}})
    with Session(tiny_resnet, DeviceSet(tuple(split.devices), ())) as session:
        found = placed_candidate(session, "p", ranked, "work-conserving")
        names = session.graph.canonical_names
        assert found.priority == tuple(ranked.priority[op] for op in names)  # type: ignore[index]
        assert found.devices == tuple(split.affinity[op] for op in names)
        assert placed_candidate(session, "p", ranked, "hetero").priority is None
        served = placed_candidate(session, "p", split.model_copy(update={"objective": "throughput"}), "work-conserving")
        assert (found.by_load, served.by_load) == (False, True)


def test_a_candidate_without_throughput_says_why(
    tiny_resnet: Path, split: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = WorkerClient.call

    def lose(client: WorkerClient, request: Any, *limits_s: float) -> Any:
        if isinstance(request, Call) and request.name == "throughput":
            raise CandidateFailed("took more than 60 s")
        return call(client, request, *limits_s)

    monkeypatch.setattr(WorkerClient, "call", lose)
    result = hsdag.bench(tiny_resnet, {"p": split}, time="0.3s")
    assert result.rows[0].inferences_per_s is None
    assert "took more than 60 s" in result.in_flight_failures["p"]


BUDGET_S = 400


def place_command(model: Path, out: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "hsdag", "place", str(model), "--partition-cpu", "2", "-o", str(out)]
    return [*command, "--budget", f"{BUDGET_S}s", "--reward", "measured", *more]


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_ctrl_c_ends_with_the_best_so_far_measured_and_saved(tiny_resnet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = place_command(tiny_resnet, out, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        await_until(lambda: num_lines(tmp_path / "out.run" / "events.jsonl") >= 5)
        process.send_signal(signal.SIGINT)
        answer, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    document = json.loads(answer)
    assert document["interrupted"]
    assert document["tally"]["tried"] >= 5
    placement = Placement.load(out)
    assert placement.latency is not None
    assert placement.latency.measured
    assert np.isfinite(placement.latency.median_s)


def test_on_one_device_nothing_is_resumed_and_the_model_is_not_even_read(
    kept_search: PlaceResult, tmp_path: Path
) -> None:
    with pytest.raises(SearchError, match="on one device there is no search to resume; leave out resume"):
        hsdag.place(tmp_path / "none.xml", "CPU", resume=True, run_folder=kept_search.run_folder)


HYBRID = ["--reward", "hybrid", "--method", "hsdag", "--set", "updates=20"]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "words"), [("events.jsonl", []), ("candidates.jsonl", HYBRID)])
def test_a_killed_search_is_resumed_without_losing_what_it_measured_and_simulated(
    tiny_resnet: Path, tmp_path: Path, file: str, words: list[str]
) -> None:
    out, run = tmp_path / "out.json", tmp_path / "out.run"
    enough = 1 if words else 4  # a busy machine may simulate few plans that are better than all before
    with subprocess.Popen(place_command(tiny_resnet, out, *words), stderr=subprocess.DEVNULL) as process:
        await_until(lambda: num_lines(run / file) >= enough or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    paths = [path for path in (run / "events.jsonl", run / "candidates.jsonl") if path.exists()]
    before = [[line for line in path.read_text().splitlines() if line.endswith("}")] for path in paths]
    most = len(before[0]) + 3
    given = PlaceOptions(partition_cpu=2, reward="measured", budget_s=BUDGET_S, max_evaluations=most, protocol=QUICK)
    if words:
        given = replace(given, reward="hybrid", method="hsdag", changes={"updates": "20"})
    resumed = run_place(tiny_resnet, given, run_folder=run, resume=True)
    after = [path.read_text().splitlines() for path in paths]
    assert [lines[: len(old)] for lines, old in zip(after, before, strict=True)] == before
    assert len(after[0]) == resumed.tally.tried <= most
    assert words or resumed.tally.tried == most
    plans = [json.dumps([json.loads(line).get(name) for name in ("placement", "order")]) for line in after[0]]
    assert len(set(plans)) == len(plans)
    assert resumed.placement.latency is not None
