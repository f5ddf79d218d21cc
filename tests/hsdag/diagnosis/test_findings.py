"""What is worth saying, and how grave it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.diagnosis import findings
from hsdag.diagnosis.findings import Severity
from hsdag.diagnosis.model import HeteroChoice, findings_on
from hsdag.ir.graph.computation_graph import graph_from_edges
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
