"""Shards in a search and by hand: what is proposed runs, computes the same, and is kept in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

import hsdag
from hsdag.base.errors import OptionError, PlacementError
from hsdag.cli.app import run
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.search import Search
from hsdag.commands.place.session import Session, placed_candidate
from hsdag.commands.place.shards import (
    ShardProposals,
    ops_by_device,
    sharded_candidate,
    told_under_hetero,
    told_undivided,
    weights_by_device,
)
from hsdag.commands.shard import divide
from hsdag.exports.parts import placed_parts
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.ir.placement.divided import divided
from hsdag.ir.placement.placement import Placement
from hsdag.methods.shards.choice import Sharding
from hsdag.models import save_model_files
from hsdag.runtime.costs.shard_costs import ShardFactors
from hsdag.runtime.costs.work_conserving_costs import PartTable
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.runtime.problem.pins import Pin
from hsdag.runtime.problem.problem_file import read_problem
from hsdag.search.options import PlaceOptions
from tests.hsdag.ir.shards.random_shards import LARGEST_DIFFERENCE, difference, outputs_of
from tests.stateful import EXACT, generate, unsplit

DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB")
EXACTLY = ";".join(map("=".join, EXACT.items()))
EXACT_DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;{EXACTLY}]" for name in "AB")


@pytest.fixture(scope="module")
def session(tiny_bert: Path) -> Iterator[Session]:
    with Session(tiny_bert, resolve_devices(DEVICES, None), executor="work-conserving") as session:
        yield session


def test_what_is_proposed_runs_in_the_worker_and_computes_what_the_model_computes(session: Session) -> None:
    graph, proposals = session.graph, proposals_of(session)
    (sharding, *_) = proposals.proposed()
    devices, far = opened_and_difference(session, sharding, {"INFERENCE_PRECISION_HINT": "f32"})
    assert devices == ("CPU_A", "CPU_B")
    assert far < 1e-5
    assert 0 < max(weights_by_device(session, proposals.sharded(sharding)).values()) < graph.weight_bytes.sum()
    assert sum(ops_by_device(session, sharding).values()) > graph.num_ops
    assert proposals_of(session, objective=THROUGHPUT).proposed() == []


def opened_and_difference(
    session: Session, sharding: Sharding, properties: Mapping[str, str]
) -> tuple[tuple[str, ...], float]:
    """The devices on which a divided model runs, and how far its outputs are from those of the whole one."""
    opened = session.runner.open("shards", sharded_candidate(session, sharding))
    session.runner.open("whole", Candidate("CPU", properties=properties))
    far = session.runner.difference("shards", "whole")["max_relative"]
    assert far is not None
    return opened.devices, far


def proposals_of(session: Session, **changes: Any) -> ShardProposals:
    """With costs of the graph's own operations, and boundaries that take next to nothing."""
    options = PlaceOptions(devices=DEVICES, **{"executor": "work-conserving", **changes})
    found = ShardProposals(session, options, session.profile())
    graph = session.graph
    seconds = np.tile((graph.flops / 1e9 + graph.output_bytes / 1e9)[:, None], 2)
    parameters = np.repeat([1.0, 1e-9, 1e-15], [2, 2, 4])
    found.costs = replace(found.costs, table=PartTable(graph, seconds), parameters=parameters, slowdown=None)
    found.whole_s = float(seconds[:, 0].sum())
    return found


@pytest.mark.slow
def test_proposals_are_measured_and_what_is_slower_than_one_device_is_proposed_no_more(session: Session) -> None:
    proposals = proposals_of(session)
    found = proposals.proposed()
    unmeasured = proposals.measured(found, 60.0, lambda: True)
    assert found
    assert proposals.measured(found, 60.0, lambda: False, lambda _: 99.0) == found  # none would be open in time
    assert proposals.best_times is None
    measured = proposals.measured(found, 60.0, lambda: False)
    taken_s = [each.predicted_s for each in measured]  # of what is faster than one device: of so small a model, none
    assert taken_s == sorted(seconds for seconds in taken_s if seconds < proposals.whole_s)
    assert proposals.factors != ShardFactors()
    assert unmeasured == found


def test_a_way_to_divide_is_measured_although_devices_seem_to_slow_each_other_down_by_more_than_it_gains(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposals = proposals_of(session)
    proposals.costs = replace(proposals.costs, slowdown=np.array([[1.0, 3.0], [3.0, 1.0]]))
    assert proposals.proposed() == []
    simulated = list[Sharding]()

    def noted(sharding: Sharding) -> float:
        simulated.append(sharding)
        return 9.0

    monkeypatch.setattr(proposals, "simulated_s", noted)
    assert proposals.to_measure(60.0)
    assert simulated
    simulated.clear()
    assert proposals.to_measure(0.0)  # by what choosing predicts
    assert not simulated


@pytest.mark.slow
def test_no_pinned_op_is_divided_and_no_device_holds_more_than_its_memory(tiny_bert: Path) -> None:
    devices, pins = resolve_devices(DEVICES, None), (Pin(r".*layers\.0\.intermediate.*MatMul", "B"),)
    with Session(tiny_bert, devices, executor="work-conserving", pins=pins) as session:
        found, graph = proposals_of(session, pins=pins).proposed(), session.graph
        pinned = {v for v, d in enumerate(session.model.pinned if session.model.pinned is not None else ()) if d == 1}
        assert pinned
        for sharding in found:
            assert not pinned & {v for region in sharding.regions for v in region.ops}
            assert {sharding.devices[v] for v in pinned} == {1}
        limited = proposals_of(session)
        limited.limits = {"A": float(graph.weight_bytes.sum()) / 4}
        held = [weights_by_device(session, limited.sharded(each))["A"] for each in limited.proposed()]
        assert all(each <= limited.limits["A"] for each in held)


@pytest.mark.slow
def test_hetero_leaves_the_model_whole_and_says_what_dividing_it_is_predicted_to_take(tiny_bert: Path) -> None:
    with Session(tiny_bert, resolve_devices(DEVICES, None)) as session:
        search = Search(session, PlaceOptions(devices=DEVICES, executor="hetero"))
        search.prepare()
        told = told_under_hetero(proposals_of(session, executor="hetero"))
    assert search.shardings == {}
    assert told is not None
    assert "of the time on one device; measure it with executor work-conserving" in told


def test_a_divided_model_is_exported_as_parts_and_not_placed_under_hetero(
    session: Session, tiny_bert: Path, tmp_path: Path
) -> None:
    out = tmp_path / "divided.json"
    assert run(["shard", str(tiny_bert), "--devices", DEVICES, "--shares", "2,1", "-o", str(out)]) == 0
    placement = Placement.load(out)
    assert placed_candidate(session, "p", placement, "work-conserving").regions
    with pytest.raises(PlacementError, match=r"^p: .* divides ops over devices, which HETERO does not run"):
        placed_candidate(session, "p", placement, "hetero")
    model = ov.Core().read_model(tiny_bert)
    inputs = [np.ones(list(port.get_shape()), np.int64) for port in model.inputs]
    placed = placed_parts(model, placement)
    tensors = {(-1, k): array for k, array in enumerate(inputs)}
    for k, part in enumerate(placed.parts):
        compiled = ov.Core().compile_model(part.model, part.device.plugin, part.device.properties)
        results = compiled([tensors[source.part, source.port] for source in part.reads])
        tensors.update({(k, port): np.array(array) for port, array in enumerate(results.to_tuple())})
    found = [tensors[source.part, source.port] for source in placed.outputs]
    assert difference(found, outputs_of(model, inputs)) < LARGEST_DIFFERENCE


@pytest.mark.parametrize("precision", ["int4", "fp16"])
@pytest.mark.slow
def test_variables_are_divided_by_heads_and_64_tokens_are_those_of_the_whole_model(
    tmp_path: Path, precision: str
) -> None:
    path = save_model_files(f"tiny_stateful_llama_{precision}", tmp_path / "llama.xml")
    model, placement = divide(path, EXACT_DEVICES, None, None, [], {})
    regions = [each for each in placement.shards or () if each.scheme == "heads"]
    assert len(regions) == 4  # a layer each
    graph = graph_of(divided(model, placement)[0])
    kept = [name for name in graph.variables if name]
    assert len(kept) == 2 * sum(map(bool, graph_of(model).variables))
    assert all(name.endswith(("@A", "@B")) for name in kept)
    with hsdag.compile_work_conserving(model, placement) as compiled:
        assert generate(compiled.create_infer_request()).tokens == unsplit(model).tokens


@pytest.mark.slow
def test_a_prompt_is_divided_and_where_syncs_are_dear_a_line_says_why_nothing_is(tmp_path: Path) -> None:
    path = save_model_files("tiny_stateful_llama_fp16", tmp_path / "llama.xml")
    devices, scenarios = resolve_devices(EXACT_DEVICES, None), parse_scenarios((), "32,1+8")
    with Session(path, devices, ModelInputs(scenarios=scenarios), executor="work-conserving") as session:
        proposals = proposals_of(session)
        (sharding, *_) = proposals.proposed()
        assert opened_and_difference(session, sharding, EXACT)[1] < 1e-4
        figures = proposals.costs.parameters.reshape(4, -1) * np.array([[1.0], [1e9], [1.0], [1.0]])
        proposals.costs = replace(proposals.costs, parameters=figures.ravel())
        assert proposals.proposed() == []
        told = told_undivided(proposals)
    assert "heads" in {region.scheme for region in sharding.regions}
    assert told is not None
    assert "dividing this model is not predicted to gain anything" in told


@pytest.mark.slow
def test_a_divided_model_is_a_problem_whose_shards_name_their_op(tiny_bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "problem.json"
    assert run(["shard", str(tiny_bert), "--devices", DEVICES, "--problem", "-o", str(out)]) == 0
    problem = read_problem(out)
    parts = {v: name for v, name in enumerate(problem.labels.meta_ops) if problem.labels.roles[v] == "shard"}
    twice = [name for name in parts.values() if list(parts.values()).count(name) == 2]
    assert twice
    assert set(problem.labels.roles) == {"shard", "reduce", ""}


def test_shares_are_those_that_were_given(tiny_bert: Path) -> None:
    _, placement = divide(tiny_bert, DEVICES, None, "3,1", ["hidden"], {})
    regions = [each for each in placement.shards or () if each.scheme == "hidden"]
    assert regions
    assert {each.scheme for each in placement.shards or ()} == {"hidden", "replicated"}
    for each in regions:
        (first, last), (begin, end) = each.shares.values()
        assert (last - first) / (end - begin) == 3


def test_two_products_that_nothing_passes_by_are_one_region(tmp_path: Path) -> None:
    x = parameter = opset13.parameter([64, 128], np.float32)
    wide, narrow = (np.ones(shape, np.float32) for shape in ((128, 512), (512, 128)))
    for _ in range(3):
        x = opset13.matmul(opset13.relu(opset13.matmul(x, wide, False, False)), narrow, False, False)
    ov.save_model(ov.Model([x], [parameter], "chain"), tmp_path / "chain.xml")
    _, placement = divide(tmp_path / "chain.xml", DEVICES, None, None, [], {})
    found = [(each.scheme, [op.partition(":")[0] for op in each.ops]) for each in placement.shards or ()]
    assert found == [("hidden", ["MatMul", "Relu", "MatMul"])] * 3


@pytest.mark.parametrize(
    ("shares", "schemes", "complaint"),
    [
        ("0.5", [], "one number, 0 or more, is needed for each of the 2 devices"),
        ("a,b", [], "one number, 0 or more"),
        ("-1,2", [], "one number, 0 or more"),
        (None, ["diagonals"], "unknown scheme 'diagonals'; choose one of rows, hidden, heads, channels, columns"),
        ("99,1", ["channels", "heads"], "no two devices can divide ops .* in these shares by channels or heads"),
    ],
)
def test_what_cannot_be_divided_so_is_refused(
    tiny_bert: Path, shares: str | None, schemes: list[str], complaint: str
) -> None:
    with pytest.raises(OptionError, match=complaint):
        divide(tiny_bert, DEVICES, None, shares, schemes, {})
