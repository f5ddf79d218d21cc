"""What is worth saying, how grave it is, and what to run next: commands that hsdag takes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.base.processes import WorkerClient
from hsdag.commands.doctor import findings
from hsdag.commands.doctor.examination import next_commands, shape_options
from hsdag.commands.doctor.findings import FINDINGS, Questions, Severity
from hsdag.commands.doctor.model import HeteroChoice, ModelReport, examined_model, findings_on
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.graph.reader import parse_shapes
from hsdag.ir.graph.scenario import Scenario, parse_scenarios
from hsdag.runtime.measuring.messages import DeviceFacts, Precision

FACTS = DeviceFacts("a GPU", "discrete", "2026.4", 1e9, (), "f16")
GRAPH = replace(
    graph_from_edges(["Parameter", "Constant", "A", "Result"], [(0, 2), (1, 2), (2, 3)], op_names=["x", "w", "a", "r"]),
    weight_bytes=np.array([0, 2_000_000_000, 0, 0]),
)


def gaps(by_default: float | None, in_f32: float | None) -> Precision:
    return Precision({"max_relative": by_default}, {"max_relative": in_f32})


def test_a_precision_is_noted_and_wrong_outputs_are_a_danger() -> None:
    for precision, found, severities in (
        ("f16", gaps(1e-3, 1e-7), [Severity.NOTE]),
        ("f32", gaps(1e-7, 1e-7), []),
        ("f16", gaps(0.3, 1e-7), [Severity.DANGER]),
        ("f32", gaps(None, 1e-7), [Severity.DANGER]),
        ("f16", gaps(1e-3, 0.2), [Severity.DANGER]),
    ):
        said = findings.of_precision("GPU.0", replace(FACTS, precision=precision), found)
        assert [finding.severity for finding in said] == severities


def test_devices_that_take_turns_are_warned_of() -> None:
    (said,) = findings.of_overlap("A and B", {"compute": 1.02, "memory": 1.1})
    assert said.severity is Severity.WARNING
    assert "1.02 times (compute) and 1.10 times (memory)" in said.text
    assert not [*findings.of_overlap("A and B", {"compute": 1.9, "memory": 1.1}), *findings.of_overlap("A and B", {})]


def choice(chosen: list[str], variables: tuple[str, ...] = ()) -> HeteroChoice:
    graph = replace(GRAPH, variables=variables or ("",) * 4)
    return HeteroChoice.of(graph, ("GPU.0", "CPU"), chosen)


def test_ops_and_weights_are_counted_by_device_and_a_result_goes_with_its_op() -> None:
    found = choice(["GPU.0", "GPU.0", "CPU", "GPU.0"])
    counted = [(each.name, each.ops, each.weight_bytes) for each in found.devices]
    assert counted == [("GPU.0", 2, 0), ("CPU", 2, 2_000_000_000)]
    assert found.target == "HETERO:GPU.0,CPU"
    named_otherwise = HeteroChoice.of(GRAPH, ("FAST.0", "CPU"), ["GPU.0"] * 4)
    assert [(each.name, each.ops) for each in named_otherwise.devices] == [("FAST.0", 0), ("CPU", 0), ("GPU.0", 4)]
    (idle,) = findings_on(HeteroChoice.of(GRAPH, ("A", "B", "C"), ["A", "A", "B", "B"]), {})
    assert idle.text == "C will get nothing: A and B run every op"


def test_weights_beyond_a_devices_memory_are_a_danger_and_a_device_without_ops_is_warned_of() -> None:
    said = list(findings_on(choice(["GPU.0"] * 4), {"GPU.0": 1.5e9, "CPU": 64e9}))
    assert [finding.severity for finding in said] == [Severity.DANGER, Severity.WARNING]
    assert "2 GB of weights, and GPU.0 has 1.5 GB" in said[0].text
    assert said[1].text == "CPU will get nothing: GPU.0 runs every op"
    assert [finding.severity for finding in findings_on(choice(["GPU.0"] * 4), {"GPU.0": 2e9})] == [Severity.WARNING]


def test_state_that_hetero_loses_is_a_danger() -> None:
    (said,) = findings_on(choice(["GPU.0", "GPU.0", "CPU", "CPU"], ("s", "", "s", "")), {})
    assert said.severity is Severity.DANGER
    assert "'s' of the model's state, or fails: it is on GPU.0 and CPU" in said.text
    assert not list(findings_on(choice(["GPU.0", "CPU", "GPU.0", "GPU.0"], ("s", "", "s", "")), {}))


def test_a_model_that_hetero_refuses_is_a_danger() -> None:
    (said,) = findings_on(choice(["CPU", "CPU", "", ""]), {})
    assert said.severity is Severity.DANGER
    assert said.text == "does not compile the model: no device of GPU.0, CPU runs 2 of 4 ops, for example 'a' (A)"


def test_outputs_that_are_off_are_told_by_how_much() -> None:
    for gap, severity in ((1e-3, "note"), (0.2, "warning"), (None, "danger")):
        assert findings.of_outputs("GPU.0", gap).severity.value == severity


class Answered(Questions):
    """Questions whose answers are known by what is asked, and perhaps of whom."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(cast(WorkerClient, None), 1.0, lambda _: None)
        self.answers, self.asked = answers, list[str]()

    def ask(self, about: str, doing: str, *_: Any, **__: Any) -> Any:
        self.asked.append(doing)
        return self.answers.get(f"{about} {doing}", self.answers.get(doing))


def examined(answers: dict[str, Any], size: int, *, stateful: bool = False) -> tuple[Answered, ModelReport]:
    """A model of one op on two devices in half precision and one in single precision."""
    x = opset13.parameter([size], np.float32, name="x")
    held = opset13.read_value(x, "s", np.float32, [size]) if stateful else x
    sinks = [opset13.assign(held, "s")] if stateful else []
    model = ov.Model([opset13.result(opset13.tanh(held, name="tanh"), name="y")], sinks, [x], "m")
    devices = [
        (DeviceSpec(n, n), replace(FACTS, precision=kind)) for n, kind in (("A", "f16"), ("B", "f16"), ("C", "f32"))
    ]
    questions = Answered(answers)
    return questions, examined_model(questions, model, [Scenario.parse("x[72]")] if size < 0 else [], devices)


REFUSED, COMPARED, SHRUNK = (
    "asking which ops it runs",
    "comparing the model's outputs",
    "running smaller inputs after larger ones",
)
HETERO = ["distributing the model", "distributing the model PIPELINE_PARALLEL"]


@pytest.mark.parametrize(("gap", "is_said"), [(None, True), (2e-3, True), (1e-3, False)])
def test_sizes_that_shrink_are_tried_where_they_can_and_none_but_equal_outputs_are_right(
    gap: float | None, is_said: bool
) -> None:
    answers = {f"{name} {COMPARED}": {"max_relative": None} for name in "AC"} | {f"B {SHRUNK}": {"max_relative": gap}}
    questions, report = examined(answers, -1)
    assert questions.asked == [REFUSED] * 3 + HETERO + [COMPARED] * 3 + [SHRUNK] * 3
    assert report.imprecise == ("A",)
    far = examined({COMPARED: {"max_relative": 0.74}}, 4)
    assert far[1].imprecise == ("A", "B")
    assert [each.about for each in far[0].findings if "infer_precision is f32" in each.text] == ["A", "B"]
    assert [each.about for each in questions.findings if "shrink" in each.text] == ["B"] * is_said
    assert SHRUNK not in examined({}, -1, stateful=True)[0].asked + examined({}, 4)[0].asked


@pytest.mark.parametrize(
    ("stateful", "refused", "is_said"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_a_model_with_state_of_which_a_device_refuses_an_op_cannot_be_distributed(
    stateful: bool, refused: bool, is_said: bool
) -> None:
    questions, report = examined({REFUSED: ["A" * (not refused)] * (3 + 2 * stateful)}, 4, stateful=stateful)
    assert ("tanh" in report.unsupported["A"], "x" in report.unsupported["A"]) == (refused, False)
    said = FINDINGS[Severity.DANGER]["stateful"]
    assert [each.text for each in questions.findings].count(said) == 2 * is_said


FILE = Path("my model.xml")
GPUS = (*parse_devices("GPU.0,GPU.1"), DeviceSpec.parse("FAST=CPU[INFERENCE_NUM_THREADS=2]"))


def report(imprecise: tuple[str, ...] = ()) -> ModelReport:
    found: dict[str, Any] = {"name": "m", "ops": 1, "weight_bytes": 0, "unsupported": {}, "outputs": {}}
    return ModelReport(**found, variables=(), open_inputs=(), imprecise=imprecise, hetero=())


def devices_of(command: str) -> tuple[DeviceSpec, ...]:
    words = shlex.split(command)
    return parse_devices(words[words.index("--devices") + 1])


def test_devices_are_named_so_that_hsdag_reads_them_and_compute_in_f32_where_they_overflow() -> None:
    (command,) = next_commands(FILE, report(), GPUS, None, 4, [])
    assert shlex.split(command)[:3] == ["hsdag", "place", str(FILE)]
    assert devices_of(command) == GPUS
    (command,) = next_commands(FILE, report(imprecise=("GPU.1",)), GPUS, None, 4, [])
    hints = [spec.properties.get("INFERENCE_PRECISION_HINT") for spec in devices_of(command)]
    assert hints == [None, "f32", None]
    (command,) = next_commands(FILE, report(imprecise=("CPU",)), parse_devices("CPU"), None, 4, [])
    assert command.endswith(" --partition-cpu 2 --infer-precision f32")


def test_a_lone_cpu_is_to_be_divided_if_it_can_and_its_parts_are_asked_for_again() -> None:
    for threads, where in ((2, "--partition-cpu 2"), (1, "--devices CPU")):
        said = next_commands(None, None, parse_devices("CPU"), None, threads, [])
        assert said == (f"hsdag doctor MODEL {where}", f"hsdag place MODEL {where}")
    specs = (*parse_devices("CPU_0=CPU,CPU_1=CPU"), DeviceSpec.parse("GPU"))
    assert next_commands(FILE, report(), specs, 2, 4, [])[0].endswith(" --devices GPU --partition-cpu 2")


def test_shapes_are_given_again_and_asked_for_where_they_are_open() -> None:
    options = shape_options(parse_shapes("x[1,3]"), parse_scenarios(["y[2],z[3,4]@0.5"], None))
    assert options == ["--shape", "x[1,3]", "--data-shape", "y[2],z[3,4]@0.5"]
    assert shape_options({}, parse_scenarios((), "16,1+16@3")) == ["--tokens", "16,1+16@3"]
    (command,) = next_commands(FILE, report(), GPUS, None, 4, options[:2], ("shape", "y[1,2048],z[1,64]"))
    assert command.endswith(" --shape 'x[1,3],y[1,2048],z[1,64]'")
    (command,) = next_commands(FILE, report(), GPUS, None, 4, options[:2], ("tokens", "16"))
    assert command.endswith(" --shape 'x[1,3]' --tokens 16")
    assert next_commands(FILE, report(), (), None, 4, []) == ()
