"""Limits of the answer: pins, hints of precision and the largest difference are kept by what place answers."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from hsdag import place
from hsdag.ir.errors import OptionError
from hsdag.placing.result import PlaceResult
from hsdag.placing.run_folder import RunFolder
from tests.hsdag.ir.growing import chain_model, saved

DEVICES = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]"
SHAPE = "1,64"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(chain_model(6, 64), tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def ends(chain: Path) -> tuple[str, str]:
    """The names of the first and the last product."""
    ops = [op for op in ov.Core().read_model(chain).get_ordered_ops() if op.get_type_name() == "MatMul"]
    return ops[0].get_friendly_name(), ops[-1].get_friendly_name()


@pytest.fixture(scope="module")
def pinned(chain: Path, ends: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> PlaceResult:
    """The first product is pinned to the second device, the last one to the first."""
    pins = [f"{ends[0]}=B", f"{ends[1]}=A"]
    folder = tmp_path_factory.mktemp("run") / "kept.run"
    options = {"data_shape": SHAPE, "infer_precision": "f32", "run_folder": folder}
    return place(chain, DEVICES, method="heft", reward="simulated", budget="15s", pins=pins, **options)  # type: ignore[arg-type]


def test_pinned_ops_are_where_they_were_pinned_and_devices_that_break_a_pin_are_measured_and_no_answer(
    pinned: PlaceResult, ends: tuple[str, str]
) -> None:
    by_name = {name: pinned.placement.affinity[op] for op, name in pinned.placement.names.items()}
    assert (by_name[ends[0]], by_name[ends[1]]) == ("B", "A")
    assert {"A", "B", "CPU"} <= {row.name for row in pinned.rows}
    assert "placement" in pinned.answer.name
    assert "is ruled out: it breaks --pin" in pinned.sentence


def test_hints_of_precision_are_in_the_placement_and_the_pins_in_the_run(pinned: PlaceResult) -> None:
    assert {d.properties["INFERENCE_PRECISION_HINT"] for d in pinned.placement.devices} == {"f32"}
    assert pinned.run_folder is not None
    kept = RunFolder.load(pinned.run_folder)
    assert kept.record.pins
    assert (kept.problem.supported.sum(axis=1) == 1).sum() >= 2


def test_a_start_that_breaks_a_pin_is_refused(pinned: PlaceResult, chain: Path, ends: tuple[str, str]) -> None:
    devices = DEVICES.replace("=1]", "=1;INFERENCE_PRECISION_HINT=f32]")
    with pytest.raises(OptionError, match=f"has op '{ends[0]}' on B, and --pin puts it on A"):
        place(chain, devices, start=pinned.placement, pins=[f"{ends[0]}=A"], data_shape=SHAPE)
