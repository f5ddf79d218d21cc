"""``hsdag doctor`` on the software GPUs: what it says of them, and that HETERO does what it predicts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15

from hsdag.commands.doctor import machine
from hsdag.commands.doctor.examination import Examination, examine
from hsdag.commands.doctor.findings import Severity
from hsdag.commands.doctor.hetero import PIPELINE_PARALLEL, automatic_distribution
from hsdag.ir.build import graph_of, name_uniquely
from hsdag.ir.device import hetero_properties, parse_devices
from hsdag.ir.reader import load_model
from hsdag.models import save_model_files
from hsdag.runtime.measuring.messages import Choices, WorkerSetup
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.platforms.devices import make_core
from tests.ir.submodels.hetero_members import actual_choice


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Examination:
    path = save_model_files("tiny_resnet", tmp_path_factory.mktemp("zoo") / "tiny_resnet.xml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "PAIR_S", 0.0)
        return examine(path, "GPU.0,GPU.1", budget_s=300.0)


def test_a_gpu_tells_its_driver_memory_and_precision(found: Examination) -> None:
    for device in found.devices:
        assert device.facts is not None
        assert device.facts.precision == "f16"
        assert device.facts.memory_bytes is not None
        assert device.precision is not None
        assert device.precision.driver
        by_default, in_f32 = device.precision.default["max_relative"], device.precision.single["max_relative"]
        assert by_default is not None
        assert in_f32 is not None
        assert in_f32 < 1e-5 < by_default < 1e-2


def test_a_tensor_between_two_gpus_goes_through_the_host_and_is_copied_by_the_reader(found: Examination) -> None:
    (pair,) = found.pairs
    assert pair.there is not None
    assert pair.back is not None
    assert (pair.there.memory, pair.there.copied_by, pair.there.is_right) == ("host", ("GPU.1",), True)
    assert (pair.back.memory, pair.back.copied_by, pair.back.is_right) == ("host", ("GPU.0",), True)


def test_the_second_gpu_gets_nothing_because_the_first_holds_the_model(found: Examination) -> None:
    assert [finding.text for finding in found.findings if finding.severity is Severity.DANGER] == []
    texts = " ".join(finding.text for finding in found.findings)
    assert re.search(r"GPU\.1 will get nothing because GPU\.0 holds 1\.2 x [\d.]+ MB", texts)


def detour() -> ov.Model:
    """Twice a detour through an op that GPUs do not run, and an input that nothing reads."""
    x = opset15.parameter([4, 4], np.float32)
    first = opset15.relu(x)
    second = opset15.add(opset15.inverse(first, False), first)
    last = opset15.add(opset15.multiply(opset15.inverse(second, False), first), second)
    return ov.Model([opset15.result(last), opset15.result(first)], [x, opset15.parameter([2], np.float32)], "detour")


@pytest.mark.parametrize("policy", [{}, PIPELINE_PARALLEL])
def test_hetero_does_what_was_predicted(policy: dict[str, str], tmp_path: Path) -> None:
    ov.save_model(detour(), tmp_path / "detour.xml", compress_to_fp16=False)
    specs = parse_devices("GPU.0,CPU")
    model = load_model(tmp_path / "detour.xml", dynamic=True)
    name_uniquely(model)
    graph, names = graph_of(model), [spec.openvino_name for spec in specs]
    worker = Worker(WorkerSetup(tmp_path / "detour.xml"))
    chosen = worker.handle(Choices("HETERO:" + ",".join(names), specs, policy))
    found = automatic_distribution(graph, names, chosen, next(iter(policy.values()), None))
    target = "HETERO:" + ",".join(names)
    ops, compiled = actual_choice(make_core(specs), model, target, hetero_properties(specs, policy))
    drawn = [v for v, name in enumerate(graph.op_names) if name in ops and graph.op_types[v] != "Constant"]
    assert len(drawn) > 5
    assert [ops[graph.op_names[v]][0] for v in drawn] == [found.devices[int(found.device[v])] for v in drawn]
    assert {device: compiled.count(device) for device in found.submodels} == dict(found.submodels)
