"""Memory that forces a split: no device holds the whole model, stages do, and who gets nothing is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag import place
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import graph_of, read_graph
from hsdag.ir.graph.colocation import held_bytes, widened
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.models.registry import build_model
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
    answer = next(row for row in forced.rows if row.is_answer)
    assert answer.submodels == 2
    held = [forced.weight_bytes[name] / WEIGHT_BYTES for name in "AB"]
    assert sum(held) == LAYERS
    assert max(held) <= 9 < LAYERS
    assert forced.warnings == ()
    assert "Warning" not in forced.sentence


def test_devices_that_are_too_small_for_the_model_are_no_answer_and_the_reason_is_told(forced: PlaceResult) -> None:
    for name in ("A", "B", "CPU"):
        assert "the model's weights and state take 197 kB, and it has 156 kB" in forced.failures[name]
    assert forced.sentence.startswith("No device has the memory for the whole model; the placement does")
    assert forced.placement.speedup is None


def test_memory_that_cannot_be_met_is_refused_at_once_with_the_least_that_could_do(chain: Path) -> None:
    with pytest.raises(OptionError, match=r"take 197 kB, and --memory gives A, B 160 kB together; 197 kB is the least"):
        place(chain, DEVICES, data_shape=SHAPES, memory="A=100KB,B=60KB")


def test_a_divided_device_has_no_more_memory_than_its_parts_together(chain: Path) -> None:
    given = {"scenarios": parse_scenarios(SHAPES, None), "memory_bytes": {"A": 100e3, "B": 98e3}}
    with Session(chain, resolve_devices(DEVICES, None), **given) as session:  # type: ignore[arg-type]
        assert session.memory_limits(None) == {"A": 100e3, "B": 98e3, "CPU": 198e3}


def test_constants_are_held_wherever_they_are_read(chain: Path) -> None:
    graph = graph_from_edges(["Constant", "Convert", "MatMul", "MatMul"], [(0, 1), (1, 2), (1, 3)])
    graph.weight_bytes.flags.writeable = True
    graph.weight_bytes[0] = 10
    assert held_bytes(graph, np.array([0, 0, 0, 1]), np.zeros(3, np.bool_)).tolist() == [10.0, 10.0, 0.0]
    whole = read_graph(chain, dynamic=True)
    assert held_bytes(whole, np.zeros(whole.num_ops, np.int64), np.zeros(1, np.bool_))[0] == whole.weight_bytes.sum()


def test_weights_in_half_precision_take_twice_as_much_where_a_device_computes_in_single() -> None:
    graph = graph_of(build_model("tiny_stateful_llama_fp16"))
    on_second = np.ones(graph.num_ops, dtype=np.int64)
    stored, single = (held_bytes(graph, on_second, np.array([True, widens]))[1] for widens in (False, True))
    half = sum(graph.weight_bytes[v] for v in range(graph.num_ops) if graph.element_types[v] == "f16")
    assert single - stored == half > 0.9 * stored
    assert widened(graph).weight_bytes.sum() == single
