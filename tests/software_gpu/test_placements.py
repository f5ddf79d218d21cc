"""Placed models on the CPU and two GPUs: under HETERO and under our executor they compute what the CPU does."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import parse_devices
from hsdag.models import save_model_files
from hsdag.runtime.executor.compiling import compile_placed
from hsdag.runtime.executor.openvino_backend import SharedMemory
from tests.hsdag.ir.shards.random_shards import inputs_of, outputs_of
from tests.hsdag.runtime.executor.placing import placed
from tests.software_gpu.conftest import CPU, GPU_0, GPU_1

LISTS = {"gpu-gpu": f"{GPU_0},{GPU_1}", "all": f"{CPU},A={GPU_0},{GPU_1}"}


@pytest.fixture(scope="module", params=["tiny_resnet", "tiny_llama", "tiny_bert"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ov.Model:
    return ov.Core().read_model(save_model_files(request.param, tmp_path_factory.mktemp("zoo") / "model.xml"))


@pytest.fixture(scope="module")
def expected(model: ov.Model) -> list[Any]:
    return outputs_of(model, inputs_of(model, np.random.default_rng(0)))


def relative_error(found: list[Any], expected: list[Any]) -> float:
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("devices", LISTS)
def test_random_placements_compute_what_the_cpu_does(model: ov.Model, expected: list[Any], devices: str) -> None:
    core, rng, inputs = ov.Core(), np.random.default_rng(len(devices)), inputs_of(model, np.random.default_rng(0))
    drawn = np.where(rng.random(1000) < 0.1, rng.integers(3, size=1000), rng.integers(3))
    placement = placed(model, lambda _, s: int(drawn[s]), devices=parse_devices(LISTS[devices]))
    hetero = placement.compile(core, model)(inputs)
    assert relative_error([hetero[k] for k in range(len(expected))], expected) < 1e-3
    with compile_placed(model, placement, core=core) as ours:
        for _ in range(2):
            found = ours(inputs)
            assert relative_error([found[k] for k in range(len(expected))], expected) < 1e-3


def there_and_back() -> ov.Model:
    """cos(sine) + tanh(sine): with the tanh elsewhere, the sum reads the cosine from another part of its own device."""
    given = opset13.parameter([1, 64], np.float32, name="x")
    sine = opset13.sin(given)
    tanh = opset13.tanh(sine)
    tanh.set_friendly_name("tanh")
    return ov.Model([opset13.result(opset13.add(opset13.cos(sine), tanh))], [given], "there_and_back")


def test_a_tensor_that_one_gpu_writes_and_reads_stays_in_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[type] = []
    make = SharedMemory.tensor

    def remembered(*given: Any) -> Any:
        tensor = make(*given)
        homes.append(type(tensor))
        return tensor

    monkeypatch.setattr(SharedMemory, "tensor", remembered)
    model, devices = there_and_back(), parse_devices("GPU.0[INFERENCE_PRECISION_HINT=f32],CPU")
    placement = placed(model, lambda name, _: int(name == "tanh"), devices=devices)
    with compile_placed(model, placement) as ours:
        for scale in (1.0, 0.5, 0.0):
            values = scale * np.linspace(-3, 3, 64, dtype=np.float32)[None]
            assert np.allclose(ours([values])[0], np.cos(np.sin(values)) + np.tanh(np.sin(values)), atol=1e-3)
    # the sine and the tanh, which both devices use, lie where both reach them; the sum is the caller's
    assert sorted(kind.__name__ for kind in homes) == ["RemoteTensor", "Tensor", "Tensor", "Tensor"]
