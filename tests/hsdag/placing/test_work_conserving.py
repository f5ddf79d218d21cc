"""The work-conserving executor in place and bench: what is searched for, compared, written and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hsdag
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import Placement
from hsdag.ir.processes import CandidateFailed, WorkerClient
from hsdag.placing.place import run_place
from hsdag.placing.result import PlaceResult
from hsdag.placing.session import Session, placed_candidate
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.measuring.messages import Call
from hsdag.search.options import PlaceOptions
from tests.placements import halves

QUICK = Protocol(min_rounds=4, max_rounds=6, turn_s=0.02)
ONE = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": "NO"}


@pytest.fixture(scope="module")
def split(tiny_resnet: Path) -> Placement:
    """A placement file's content for the work-conserving executor: half of tiny_resnet on either of two devices."""
    graph = read_graph(tiny_resnet)
    devices = [DeviceSpec(name, "CPU", ONE) for name in ("CPU_A", "CPU_B")]
    return halves(graph, devices, executor="work-conserving")


@pytest.fixture(scope="module")
def placed(tiny_resnet: Path, tmp_path_factory: pytest.TempPathFactory) -> PlaceResult:
    """A short search for the work-conserving executor, kept in a folder."""
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
    return run_place(tiny_resnet, options, run_folder=tmp_path_factory.mktemp("place") / "run")


def test_a_split_is_compared_with_hetero_and_the_answer_names_the_executor_that_ran_it_and_has_every_op(
    placed: PlaceResult, tiny_resnet: Path
) -> None:
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


def test_a_file_with_priorities_runs_by_them_and_hetero_without(split: Placement, tiny_resnet: Path) -> None:
    ranked = split.model_copy(update={"priority": {op: k for k, op in enumerate(reversed(split.affinity))}})
    with Session(tiny_resnet, DeviceSet(tuple(split.devices), ())) as session:
        found = placed_candidate(session, "p", ranked, "work-conserving")
        names = session.graph.canonical_names
        assert found.priority == tuple(ranked.priority[op] for op in names)  # type: ignore[index]
        assert found.devices == tuple(split.affinity[op] for op in names)
        assert placed_candidate(session, "p", ranked, "hetero").priority is None


def test_throughput_is_measured_with_the_cut_of_the_objective(split: Placement, tiny_resnet: Path) -> None:
    documents = [split.model_copy(update={"objective": name}) for name in ("latency", "throughput")]
    with Session(tiny_resnet, DeviceSet(tuple(split.devices), ())) as session:
        found = [placed_candidate(session, "p", p, "work-conserving") for p in documents]
    assert [candidate.by_load for candidate in found] == [False, True]


def test_a_candidate_without_throughput_says_why(
    tiny_resnet: Path, split: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = WorkerClient.call

    def lose(client: WorkerClient, request: Any, *limits_s: float) -> Any:
        if isinstance(request, Call) and request.method == "throughput":
            raise CandidateFailed("took more than 60 s")
        return call(client, request, *limits_s)

    monkeypatch.setattr(WorkerClient, "call", lose)
    result = hsdag.bench(tiny_resnet, {"p": split}, time="0.3s")
    assert result.rows[0].inferences_per_s is None
    assert "took more than 60 s" in result.in_flight_failures["p"]
