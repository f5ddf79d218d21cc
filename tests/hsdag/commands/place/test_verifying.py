"""Verifying: processes of their own, tolerances that follow the model, and third opinions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import openvino as ov
import pytest

from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.pace import Deadline
from hsdag.commands.place.records import Verdict
from hsdag.commands.place.verifying import Check, Verifier
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.runtime.machine.devices import reduced_precision
from hsdag.runtime.measuring.messages import WORKER_COMMAND, Candidate, WorkerSetup, worker_client
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import LATENCY
from tests.hsdag.commands.place import faulty_worker

DEVICES = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]") for i in range(2))
FULL = Check(reduced="")


def judged(model: Path, candidate: Candidate, command: tuple[str, ...] = WORKER_COMMAND) -> Verdict:
    """The verdict on a candidate that ran before in a process with others."""
    with worker_client(WorkerSetup(model, DEVICES), command) as client:
        runner = CandidateRunner(client, LATENCY)
        runner.open("whole", Candidate("CPU"))
        runner.open("placement 1", candidate)
        return Verifier(runner, FULL).in_own_process("placement 1")


def test_a_process_of_its_own_is_started_where_there_is_time_for_it(tiny_resnet: Path) -> None:
    with worker_client(WorkerSetup(tiny_resnet, DEVICES)) as client:
        runner = CandidateRunner(client, LATENCY)
        runner.open("whole", Candidate("CPU_P0"))
        for end_s, is_over, num_starts in ((0.0, False, 1), (1e12, True, 1), (1e12, False, 2)):
            deadline = Deadline(end_s, lambda is_over=is_over: is_over)  # type: ignore[misc]
            verifier = Verifier(runner, FULL, deadline)
            assert verifier.in_own_process("whole").reason is None
            assert client.num_starts == num_starts


def halves(model: Path, first_of_second: str) -> Candidate:
    """Ops up to the first one of a type on one device, the rest on the other."""
    graph = read_graph(model)
    cut = next(v for v in graph.topological_order.tolist() if graph.op_types[v] == first_of_second)
    return Candidate.placed([f"CPU_P{int(graph.position[v] >= graph.position[cut])}" for v in range(graph.num_ops)])


@pytest.mark.slow
def test_a_placement_that_only_runs_beside_others_fails_in_a_process_of_its_own(tiny_resnet: Path) -> None:
    command = (sys.executable, str(faulty_worker.__file__))
    verdict = judged(tiny_resnet, halves(tiny_resnet, "MaxPool"), command)
    assert verdict.reason is not None
    assert "a process of its own" in verdict.reason
    assert "SIGFPE" in verdict.reason
    assert not verdict.ran


def test_a_right_split_passes(tiny_resnet: Path) -> None:
    verdict = judged(tiny_resnet, halves(tiny_resnet, "MaxPool"))
    assert (verdict.reason, verdict.versus, verdict.tolerance) == (None, "cpu", 1e-4)


def test_devices_in_half_precision_have_a_wider_tolerance() -> None:
    single, half = "A=CPU[INFERENCE_PRECISION_HINT=f32]", "B=CPU[INFERENCE_PRECISION_HINT=bf16]"
    assert Check(reduced_precision(parse_devices(single))).least == 1e-4
    computes_in_half = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert Check(reduced_precision(parse_devices(f"{single},{half}"))).least == (5e-2 if computes_in_half else 1e-4)


class Apart:
    """Says how far outputs of "it", "cpu", "op-by-op", "one thread" and "default" are from those of a reference."""

    def __init__(self, apart: Mapping[str, Mapping[str, float | None]]) -> None:
        self._apart, self._opened = apart, {"it": "it"}

    def open(self, key: str, candidate: Candidate) -> None:
        plain = "default" if not candidate.properties else "cpu"
        kind = "one thread" if "INFERENCE_NUM_THREADS" in candidate.properties else plain
        self._opened[key] = candidate.target if candidate.target != "CPU" else kind

    def close(self, key: str) -> None:
        del self._opened[key]

    def difference(self, key: str, reference: str) -> dict[str, float | None]:
        found = self._apart[self._opened[reference]]
        if self._opened[key] not in found:
            raise CandidateFailed("it hung")
        return {"max_relative": found[self._opened[key]]}


NONE = {"it": 0.3, "op-by-op": 0.0, "one thread": 0.0, "default": 0.0}
UNJUDGED = "in bf16, which devices take by default, this model's outputs change by 74% of their largest value"


@pytest.mark.parametrize(
    ("check", "apart", "versus", "tolerance", "reason"),
    [
        (FULL, {"cpu": {"it": 1e-4}}, "cpu", 1e-4, None),
        (FULL, {"cpu": {**NONE, "it": 0.02, "one thread": 0.01}}, "cpu", 0.02, None),  # twice the model's own
        (FULL, {"cpu": {**NONE, "it": 0.1, "op-by-op": 0.09}}, "cpu", 0.1, None),  # at most what rounding may be
        (FULL, {"cpu": {**NONE, "one thread": 0.2}, "op-by-op": {"it": 0.0}}, "op-by-op", 1e-4, None),
        (Check("bf16"), {"cpu": {**NONE, "it": 0.011, "default": 0.006}}, "cpu", 0.012, None),
        (
            Check("bf16"),  # DeBERTa whose parts handed over in bf16 what one device keeps in f32
            {"cpu": {**NONE, "it": 0.012, "default": 0.0005}, "op-by-op": {"it": 0.012}},
            "cpu",
            0.001,
            "its outputs differ by 0.012 from cpu, and 0.001 is allowed; its outputs differ by 0.012 from op-by-op, "
            "and 0.001 is allowed",
        ),
        (Check("bf16"), {"cpu": {**NONE, "default": 0.74}, "op-by-op": {"it": 0.3}}, "cpu", 0.001, UNJUDGED),
        (Check("", "op-by-op"), {"op-by-op": {"it": 0.3, "cpu": 0.0}, "cpu": {"it": 0.0}}, "cpu", 1e-4, None),
        (
            FULL,
            {"cpu": NONE, "op-by-op": {"it": None}},
            "cpu",
            1e-4,
            "its outputs differ by 0.3 from cpu, and 0.0001 is allowed; its outputs differ in values that are not "
            "finite from op-by-op, and 0.0001 is allowed",
        ),
        (FULL, {"cpu": {}, "op-by-op": {"it": 0.0}}, "op-by-op", 1e-4, None),
        (
            FULL,
            {"cpu": {}, "op-by-op": {}},
            "cpu",
            1e-4,
            "its outputs could not be compared with cpu or op-by-op: it hung",
        ),
        (Check("", "cpu", 0.3), {"cpu": {"it": 0.3}}, "cpu", 0.3, None),
        (
            Check("", "cpu", 0.2),
            {"cpu": {"it": 0.3}},
            "cpu",
            0.2,
            "its outputs differ by 0.3 from cpu, and 0.2 is allowed",
        ),
    ],
)
def test_outputs_are_judged_by_the_models_own_differences_and_a_third_opinion_and_by_a_limit_alone(
    check: Check, apart: dict[str, dict[str, float | None]], versus: str, tolerance: float, reason: str | None
) -> None:
    verifier = Verifier(cast(CandidateRunner, Apart(apart)), check)
    verdict = verifier.compared("it")
    assert verdict.versus == versus
    assert verdict.tolerance == pytest.approx(tolerance)
    assert verdict.reason == reason or (reason == UNJUDGED and (verdict.reason or "").startswith(UNJUDGED))


def test_a_split_may_lose_what_a_device_alone_loses_and_no_device_is_asked_that_a_limit_has_no_use_for() -> None:
    apart = {"cpu": {**NONE, "it": 0.03, "GPU": 0.02}, "op-by-op": {"it": 0.03}}
    for check, passes in ((Check("f16"), True), (Check("f16", "cpu", 0.01), False), (FULL, False)):
        runner = Apart(apart)
        runner.open("GPU", Candidate("GPU"))
        verifier = Verifier(cast(CandidateRunner, runner), check)
        verifier.heed(["GPU"])
        assert (verifier.compared("it").reason is None) is passes


def test_no_op_is_computed_by_itself_for_a_device_whose_outputs_cannot_be_judged() -> None:
    verifier = Verifier(cast(CandidateRunner, Apart({"cpu": {"it": 0.3, "default": 0.74}})), Check("bf16"))
    assert (verifier.compared("it", is_split=False).reason or "").startswith(UNJUDGED)
