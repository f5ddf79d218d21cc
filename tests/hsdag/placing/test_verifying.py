"""Verifying: processes of their own, tolerances that follow the model, and third opinions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import read_graph
from hsdag.placing.final import Check, Verifier
from hsdag.placing.result import Verdict
from hsdag.runtime.machine.devices import reduces_precision
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import WORKER_COMMAND, WorkerSetup, worker_client
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import LATENCY
from hsdag.search.options import PlaceOptions
from tests.hsdag.runtime.measuring import faulty_worker

DEVICES = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]") for i in range(2))
FULL = Check(reduced=False)


def judged(
    model: Path,
    candidate: Candidate,
    check: Check,
    judge: Callable[[Verifier], Verdict],
    command: tuple[str, ...] = WORKER_COMMAND,
) -> Verdict:
    """The verdict on a candidate that ran before in a process with others."""
    with worker_client(WorkerSetup(model, DEVICES), command) as client:
        runner = CandidateRunner(client, LATENCY)
        runner.open("whole", Candidate("CPU"))
        runner.open("placement 1", candidate)
        return judge(Verifier(runner, check))


def in_own_process(verifier: Verifier) -> Verdict:
    return verifier.in_own_process("placement 1")


def compared(verifier: Verifier) -> Verdict:
    return verifier.compared("placement 1")


def halves(model: Path, first_of_second: str) -> Candidate:
    """Ops up to the first one of a type on one device, the rest on the other."""
    graph = read_graph(model)
    cut = next(v for v in graph.topological_order.tolist() if graph.op_types[v] == first_of_second)
    return Candidate.placed([f"CPU_P{int(graph.position[v] >= graph.position[cut])}" for v in range(graph.num_ops)])


def saved(model: ov.Model, path: Path) -> Path:
    ov.serialize(model, path)
    return path


@pytest.mark.slow
def test_a_placement_that_only_runs_beside_others_fails_in_a_process_of_its_own(tiny_resnet: Path) -> None:
    command = (sys.executable, str(faulty_worker.__file__), "divide", "1")
    verdict = judged(tiny_resnet, halves(tiny_resnet, "MaxPool"), FULL, in_own_process, command)
    assert verdict.reason is not None
    assert "a process of its own" in verdict.reason
    assert "SIGFPE" in verdict.reason
    assert not verdict.ran


def test_a_right_split_passes(tiny_resnet: Path) -> None:
    verdict = judged(tiny_resnet, halves(tiny_resnet, "MaxPool"), FULL, in_own_process)
    assert (verdict.reason, verdict.versus, verdict.tolerance) == (None, "cpu", 1e-4)


def test_outputs_that_are_not_finite_where_the_cpus_are_are_turned_down() -> None:
    def nothing(*_: object) -> None:
        pass

    runner = SimpleNamespace(open=nothing, close=nothing, difference=lambda *_: {"max_relative": None})
    verdict = Verifier(cast("CandidateRunner", runner), FULL).compared("placement 1")
    assert "its outputs differ in values that are not finite from cpu" in (verdict.reason or "")


@pytest.fixture
def misread(tmp_path: Path) -> Path:
    """A square constant read plainly and transposed, which OpenVINO 2026.4's CPU takes for one and the same."""
    rng = np.random.default_rng(0)
    x = opset13.parameter([8, 64], np.float32, name="x")
    weight = opset13.constant(rng.standard_normal((64, 64)).astype(np.float32))
    results = [opset13.result(opset13.matmul(x, weight, False, transposed)) for transposed in (False, True)]
    return saved(ov.Model(results, [x], "misread"), tmp_path / "misread.xml")


def test_a_third_opinion_saves_a_right_split_from_a_wrong_cpu(misread: Path) -> None:
    graph = read_graph(misread)
    second = [v for v in range(graph.num_ops) if graph.op_types[v] == "MatMul"][-1]
    ends = {second, *graph.successors.of(second).tolist()}
    split = Candidate.placed([f"CPU_P{int(v in ends)}" for v in range(graph.num_ops)])

    def told(verifier: Verifier) -> Verdict:
        assert verifier._measured_tolerance() == FULL.least  # a difference that large is none of rounding
        return compared(verifier)

    verdict = judged(misread, split, FULL, told)
    assert verdict.reason is None
    assert verdict.versus == "op-by-op"


def test_what_agrees_with_neither_opinion_is_turned_down_with_both_figures_and_by_a_limit_with_one(
    misread: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(verifier: Verifier) -> Verdict:
        limited = replace(verifier._check, max_difference=1e-3)
        reason = Verifier(verifier._runner, limited).compared("placement 1").reason
        assert reason is not None
        assert "from op-by-op, and 0.001 is allowed" in reason
        assert "from cpu" not in reason
        return compared(verifier)

    for name in ("TOLERANCE_FULL_PRECISION", "LARGEST_TOLERANCE"):
        monkeypatch.setattr(f"hsdag.placing.final.{name}", -1.0)
    verdict = judged(misread, Candidate("CPU"), Check(False, "op-by-op"), both)
    assert verdict.reason is not None
    assert "from op-by-op" in verdict.reason
    assert "from cpu" in verdict.reason


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """Two convolutions of quantised data, which the CPU fuses into 8-bit ones."""
    rng = np.random.default_rng(0)

    def quantise(x: Any, end: float, levels: int) -> Any:
        bounds = [opset13.constant(np.float32(b)) for b in (-end, end)]
        return opset13.fake_quantize(x, *bounds, *bounds, levels)

    x = opset13.parameter([1, 16, 16, 16], np.float32, name="x")
    y = x
    for _ in range(2):
        weight = opset13.constant((0.08 * rng.standard_normal((16, 16, 3, 3))).astype(np.float32))
        args = ([1, 1], [1, 1], [1, 1], [1, 1])
        y = opset13.relu(opset13.convolution(quantise(y, 3.0, 256), quantise(weight, 0.25, 255), *args))
    return saved(ov.Model([opset13.result(y)], [x], "quantised"), tmp_path / "quantised.xml")


def test_the_tolerance_of_a_quantised_model_follows_how_the_cpu_differs_from_itself_unless_one_was_asked_for(
    quantised: Path,
) -> None:
    def both(verifier: Verifier) -> Verdict:
        limited = replace(verifier._check, max_difference=1e-6)
        assert Verifier(verifier._runner, limited).compared("placement 1").tolerance == 1e-6
        return compared(verifier)

    verdict = judged(quantised, Candidate("CPU"), Check(False, "op-by-op"), both)
    assert verdict.difference is not None
    relative = verdict.difference["max_relative"]
    assert relative is not None
    assert relative > 1e-4
    assert verdict.tolerance == pytest.approx(2 * relative, rel=0.5)
    assert verdict.reason is None


def test_outputs_that_cannot_be_compared_are_reported(tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu", "op-by-op"):
        monkeypatch.setitem(Verifier.REFERENCES, name, Candidate("NO_SUCH_DEVICE"))
    verdict = judged(tiny_resnet, Candidate("CPU"), FULL, compared)
    assert verdict.difference is None
    assert verdict.reason is not None
    assert "could not be compared with cpu" in verdict.reason


def test_devices_in_half_precision_have_a_wider_tolerance() -> None:
    single, half = "A=CPU[INFERENCE_PRECISION_HINT=f32]", "B=CPU[INFERENCE_PRECISION_HINT=bf16]"
    assert Check(reduces_precision(parse_devices(single))).least == 1e-4
    computes_in_half = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert Check(reduces_precision(parse_devices(f"{single},{half}"))).least == (5e-2 if computes_in_half else 1e-4)


def test_references_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match="choose one of cpu, op-by-op"):
        PlaceOptions.of({"reference": "gpu"})


class TwoPrecisions:
    """Opens nothing, and says how far apart outputs are of what computes by default and what in single precision."""

    def __init__(self, apart: float, wrong: float) -> None:
        self.opened: dict[str, Candidate] = {}
        self._apart, self._wrong = apart, wrong

    def open(self, key: str, candidate: Candidate) -> None:
        self.opened[key] = candidate

    def close(self, key: str) -> None:
        del self.opened[key]

    def difference(self, key: str, reference: str) -> dict[str, float]:
        is_default = [self.opened[each] == Candidate("CPU") for each in (key, reference)]
        return {"max_relative": (self._apart if is_default[0] != is_default[1] else 0.0) + self._wrong * (key == "it")}


@pytest.mark.parametrize(
    ("apart", "wrong", "expected"),
    [
        (0.74, 0.0, "outputs cannot be judged on these inputs: this model's own differ by 0.74 between the precision"),
        (0.0, 0.74, "its outputs differ by 0.74 from cpu, and 0.05 is allowed"),
    ],
)
def test_a_model_whose_outputs_hang_on_the_precision_is_told_from_a_placement_that_computes_wrongly(
    apart: float, wrong: float, expected: str
) -> None:
    runner = TwoPrecisions(apart, wrong)
    runner.open("it", Candidate("CPU"))
    reason = Verifier(cast(CandidateRunner, runner), Check(reduced=True)).compared("it").reason
    assert reason is not None
    assert reason.startswith(expected)
    assert ("--infer-precision f32" in reason) == (wrong == 0.0)
