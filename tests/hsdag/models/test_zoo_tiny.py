"""The tiny models: same weights for one seed, torch's own answers, and the structure of the large ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray

from hsdag.models import MODELS, ModelSpec, build_model, save_model_files
from hsdag.models.torch_networks import to_openvino

Arrays = list[NDArray[np.generic]]
SPECS = {spec.name: spec for spec in MODELS}
TINY = [name for name in SPECS if name.startswith("tiny")]
NETWORKS = {name: spec.network for name, spec in SPECS.items() if name in TINY and callable(spec.network)}


@pytest.fixture(scope="module")
def built() -> dict[str, ov.Model]:
    torch.set_num_threads(1)
    return {name: build_model(name) for name in TINY}


def random_inputs(spec: ModelSpec, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    arrays: Arrays = []
    for model_input in spec.inputs:
        if model_input.element_type == "f32":
            arrays.append(rng.standard_normal(model_input.shape, dtype=np.float32))
        else:
            high = 100 if model_input.name == "input_ids" else 2
            arrays.append(rng.integers(0, high, model_input.shape))
    return arrays


def run(model: ov.Model, arrays: Arrays) -> list[NDArray[np.float32]]:
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(model, "CPU", exact).create_infer_request()
    return [np.array(value) for value in request.infer(arrays).values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_converted_network_answers_what_torch_answers(name: str) -> None:
    spec = SPECS[name]
    network, arrays = NETWORKS[name](0), random_inputs(spec, 0)
    with torch.no_grad():
        expected = network(*(torch.from_numpy(array) for array in arrays))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(run(to_openvino(spec, network), arrays), expected, strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), atol=1e-4 * float(wanted.std()), rtol=1e-4)


@pytest.mark.parametrize("name", TINY)
def test_outputs_are_finite_of_sane_scale_and_depend_on_the_input(built: dict[str, ov.Model], name: str) -> None:
    spec = SPECS[name]
    for a, b in zip(run(built[name], random_inputs(spec, 0)), run(built[name], random_inputs(spec, 1)), strict=True):
        assert np.isfinite(a).all()
        assert 0.05 < a.std() < 10
        assert np.abs(a - b).max() > 0.01 * a.std()


@pytest.mark.slow
def test_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    first = save_model_files("tiny_bert", tmp_path / "first.xml", seed=5)
    second = save_model_files("tiny_bert", tmp_path / "second.xml", seed=5)
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".bin").read_bytes() == second.with_suffix(".bin").read_bytes()


@pytest.mark.parametrize("name", NETWORKS)
def test_declared_parameters_are_those_of_the_network(name: str) -> None:
    assert sum(p.numel() for p in NETWORKS[name](0).parameters()) == SPECS[name].num_parameters


@pytest.mark.parametrize("name", TINY)
def test_model_is_named_after_the_zoo_and_takes_the_declared_inputs(built: dict[str, ov.Model], name: str) -> None:
    spec, model = SPECS[name], built[name]
    assert model.get_friendly_name() == name
    got = [(port.get_any_name(), tuple(port.shape)) for port in model.inputs]
    assert got == [(model_input.name, model_input.shape) for model_input in spec.inputs]
    assert tuple(port.get_any_name() for port in model.outputs) == spec.outputs


def test_hidden_token_changes_nothing_for_the_others(built: dict[str, ov.Model]) -> None:
    ids, mask, types = np.arange(8)[None], np.ones((1, 8), np.int64), np.zeros((1, 8), np.int64)
    mask[0, 5] = 0
    other_ids = ids.copy()
    other_ids[0, 5] = 77
    a = run(built["tiny_bert"], [ids, mask, types])[0]
    b = run(built["tiny_bert"], [other_ids, mask, types])[0]
    visible = mask[0] == 1
    np.testing.assert_allclose(a[0, visible], b[0, visible], atol=1e-6)
    assert np.abs(a[0, 5] - b[0, 5]).max() > 0.1
