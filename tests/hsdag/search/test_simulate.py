"""Placements of problems: what their files may say, and how they are simulated and told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsdag.base.errors import FileFormatError, PlacementError
from hsdag.ir.placement.placement import ModelRecord, Placement
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Order, Semantics
from hsdag.search.simulate import placed, simulate_placement

PROBLEM = ScheduleProblem.from_arrays(
    [[1.0, 2.0], [1.0, 2.0], [1.0, np.nan]],
    [(0, 1), (0, 2)],
    output_bytes=2.0**20,
    memory_bytes=[2.0**22, np.inf],
    link_latency_s=1.0,
    op_names=["a", "b", "c"],
    device_names=("gpu", "cpu"),
)
SPLIT = {"a": "gpu", "b": "cpu", "c": "gpu"}


def whole_placement(**fields: Any) -> Placement:
    document: dict[str, Any] = {
        "model": {"name": "m", "fingerprint": "sha256:" + 64 * "0"},
        "devices": [{"name": "gpu", "plugin": "GPU"}, {"name": "cpu", "plugin": "CPU"}],
        "affinity": SPLIT,
        "method": "heft",
        "seed": 0,
        "objective": "latency",
        "executor": "work-conserving",
    }
    return Placement.model_validate(document | fields)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (json.dumps({"a": "gpu", "b": "cpu"}), "has no entry for op 'c'; every op needs one"),
        (json.dumps({**SPLIT, "z": "gpu"}), "names op 'z'"),
        (json.dumps({**SPLIT, "a": "tpu"}), "op 'a' is on unknown device 'tpu'; the problem has gpu, cpu"),
        (json.dumps({**SPLIT, "c": "cpu"}), "op 'c' is on device 'cpu', which does not support it"),
        (json.dumps({**SPLIT, "c": 1}), "'c': a device name is expected, not 1"),
        ("[1]", "a placement must be a non-empty object"),
        ("{}", "a placement must be a non-empty object"),
        (whole_placement(priority={"a": 1}).to_json(), "'priority' has no entry for op 'b' and 1 more"),
        (whole_placement(priority={**dict.fromkeys(SPLIT, 1), "z": 1}).to_json(), "'priority' names op 'z'"),
        (whole_placement().to_json().replace('"heft"', "3"), "method: "),
    ],
)
def test_a_placement_of_other_ops_or_devices_is_refused(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises((FileFormatError, PlacementError), match=line) as raised:
        placed(path, PROBLEM)
    assert str(path) in str(raised.value)


def test_a_placement_is_for_its_model_and_its_ranks_are_read_where_the_order_is_theirs() -> None:
    whole = whole_placement(priority={"a": 0, "b": 2, "c": 1})
    for order, priority in ((None, [0, 2, 1]), (Order.PRIORITY, [0, 2, 1]), (Order.FIFO, None)):
        plan = placed(whole, PROBLEM, order)
        assert plan.placement.tolist() == [0, 1, 0]
        assert (None if plan.priority is None else plan.priority.tolist()) == priority
        found = simulate_placement(PROBLEM, replace(plan, placement=np.zeros(3, dtype=np.int64)), Semantics())
        assert (found.order, found.run.start_s.tolist()) == (
            ("fifo", [0, 1, 2]) if priority is None else ("priority", [0, 2, 1])
        )
    assert placed(whole_placement(), replace(PROBLEM, model=whole.model)).priority is None
    with pytest.raises(PlacementError, match="the placement is for model 'm', but the problem is of model 'other'"):
        placed(whole, replace(PROBLEM, model=ModelRecord(name="other", fingerprint="sha256:" + 64 * "1")))


def test_a_simulated_placement_is_told_in_milliseconds_percent_and_megabytes() -> None:
    plan = Plan(np.array([0, 1, 0]))
    found, full = (
        simulate_placement(each, plan, Semantics()) for each in (PROBLEM, replace(PROBLEM, memory_bytes=np.ones(2)))
    )
    assert (found.over_memory, full.over_memory) == ((), ("gpu", "cpu"))
    assert found.table()[1] == [
        ["gpu", "2", "2000", "50.0", "2.097", "4.194"],
        ["cpu", "1", "2000", "50.0", "2.097", "-"],
    ]
    assert found.sentence == "Simulated makespan 4000 ms; 1 transfers, 1.049 MB"
