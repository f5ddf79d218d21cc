"""Memory that forces a split: no device holds the whole model, stages do, and who gets nothing is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsdag import place
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.placing.result import PlaceResult
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import resolve_devices
from tests.hsdag.ir.growing import chain_model, saved

ONE_THREAD = "CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]"
DEVICES = ",".join(f"{name}={ONE_THREAD}" for name in "AB")
SHAPES = ("16,64", "1,64@3")
LAYERS, WIDTH = 12, 64
WEIGHT_BYTES = 4 * WIDTH * WIDTH


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(chain_model(LAYERS, WIDTH), tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def forced(chain: Path) -> PlaceResult:
    """Each device has memory for nine of the twelve layers, results included."""
    limit = int(9.5 * WEIGHT_BYTES)
    memory = ",".join(f"{name}={limit}" for name in ("A", "B", "CPU"))
    return place(chain, DEVICES, method="pipeline", reward="simulated", budget="60s", data_shape=SHAPES, memory=memory)


def test_a_model_that_no_device_holds_is_split_once_within_the_memory_of_both(forced: PlaceResult) -> None:
    assert forced.answer.submodels == 2
    held = [forced.weight_bytes[name] / WEIGHT_BYTES for name in "AB"]
    assert sum(held) == LAYERS
    assert max(held) <= 9 < LAYERS
    assert all("processors" in warning for warning in forced.warnings)  # those of a busy machine


def test_devices_that_are_too_small_for_the_model_are_no_answer_and_the_reason_is_told(forced: PlaceResult) -> None:
    for name in ("A", "B", "CPU"):
        assert "the model's weights and state take 197 kB, and it has 156 kB" in forced.failures[name]
    assert forced.sentence.startswith("No device has the memory for the whole model; the placement does")
    assert forced.placement.speedup is None


def test_a_placement_of_a_dynamic_model_holds_its_scenarios_and_fits_the_model_as_it_is(forced: PlaceResult) -> None:
    assert forced.placement.data_shapes == ("x[16,64]", "x[1,64]@3")
    assert forced.placement.model.input_shapes == {}
    forced.placement.apply(chain_model(LAYERS, WIDTH))


def test_memory_that_cannot_be_met_is_refused_at_once_with_the_least_that_could_do(chain: Path) -> None:
    with pytest.raises(OptionError, match=r"take 197 kB, and --memory gives A, B 160 kB together; 197 kB is the least"):
        place(chain, DEVICES, data_shape=SHAPES, memory="A=100KB,B=60KB")


def test_a_divided_device_has_no_more_memory_than_its_parts_together(chain: Path) -> None:
    given = {"scenarios": parse_scenarios(SHAPES, None), "memory_bytes": {"A": 100e3, "B": 98e3}}
    with Session(chain, resolve_devices(DEVICES, None), **given) as session:  # type: ignore[arg-type]
        assert session.memory_limits(None) == {"A": 100e3, "B": 98e3, "CPU": 198e3}
