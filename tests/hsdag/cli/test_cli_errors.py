"""Bad input: one clear line on stderr, exit code 2, nothing on stdout, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.problem.problem_file import write_problem
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.placements import by_hand

Complains = Callable[..., str]
TWO = "place DYNAMIC --data-shape 1,8 --devices A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]"


def placement_for(model: Path, device: str = "CPU", plugin: str = "CPU", executor: str = "hetero") -> Placement:
    graph = read_graph(model)
    return by_hand(graph, [DeviceSpec(device, plugin)], [device] * graph.num_ops, executor=executor)


@pytest.fixture(scope="module")
def files(tiny_resnet: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files by the words that stand for them below; FOLDER is theirs."""
    folder = tmp_path_factory.mktemp("files")
    found = {"MODEL": tiny_resnet, "FOLDER": folder, "NONE": folder / "none"}
    for suffix in ("xml", "bin"):
        (folder / f"text.{suffix}").write_text("this is a shopping list: eggs, flour, sugar")
    x = opset13.parameter(ov.PartialShape([-1, 8]), np.float32, name="x")
    found["DYNAMIC"] = folder / "dynamic.xml"
    ov.save_model(ov.Model([opset13.result(opset13.relu(x))], [x], "dynamic"), found["DYNAMIC"])
    found |= {name: folder / f"{name}.json" for name in ("PLACEMENT", "OTHER", "ABSENT", "TORCH", "PROBLEM")}
    placement_for(tiny_resnet).save(found["PLACEMENT"])
    placement_for(tiny_bert).save(found["OTHER"])
    placement_for(tiny_resnet, "GPU.1", "GPU.1").save(found["ABSENT"])
    placement_for(tiny_resnet, "A", "cpu", "cuda").save(found["TORCH"])
    write_problem(random_problem(1, 10, 3), found["PROBLEM"])
    return found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("inspect NONE.xml", "no such file"),
        ("place FOLDER/text.xml", "is not a"),
        ("place DYNAMIC", "such as --shape 'x[1,8]'"),
        ("place DYNAMIC --shape y[1,8]", "a shape is given for input 'y'"),
        ("place MODEL --devices CPU,TPU", "unknown device 'TPU'"),
        *((f"place MODEL --budget={text}", "--budget must be more than zero") for text in ("0", "-3s", "0s")),
        ("place MODEL -o FOLDER/out.run", "--run"),
        ("place MODEL -o /proc/out.json", "/proc takes no files"),
        ("bench MODEL -i FOLDER", "--input takes an .npz file"),
        ("export PLACEMENT --model NONE -o /proc/out.json", "/proc takes no files"),
        ("place .", "is a folder"),
        ("bench MODEL --device AUTO:XPU --time 0.3s", "no candidate ran the model"),
        ("bench MODEL --device AUTO:CPU --trace FOLDER/trace.json --time 0.3s", "AUTO:CPU is no device"),
        ("bench MODEL --device CPU --device AUTO:CPU --trace FOLDER/t.json", "shows one run"),
        ("bench MODEL --placement OTHER", "is for model 'tiny_bert'"),
        ("bench MODEL --placement ABSENT", "unknown device 'GPU.1'"),
        ("place MODEL --partition-cpu 4096", "threads to share"),
        ("place MODEL --resume --devices CPU -o FOLDER/out.json", "nothing to resume"),
        ("plaice", "No such command"),
        ("shard MODEL --devices CPU -o FOLDER/m.txt", "m.txt ends in neither .json (a placement) nor .xml"),
        ("place MODEL --bugdet 5s", "No such option: --bugdet (Possible options: --budget, "),
        ("export MODEL --format csv -o FOLDER/x.csv", "a placement file is expected"),
        ("bench MODEL --executor fast", "choose one of auto, hetero, work-conserving, cuda"),
        ("place MODEL --partition-cpu 2 --memory GPU.7=1GB", "device 'GPU.7'; the devices are CPU_0, CPU_1, CPU"),
        (f"{TWO} --pin .*=CPU", "--pin .*=CPU names device 'CPU'; the devices are A, B"),
        (f"{TWO} --infer-precision f17", "fails to load"),
        ("place MODEL --executor cuda --devices A=cpu --partition-cpu 2", "--partition-cpu makes"),
        ("place NONE.xml --executor cuda --devices A=cpu", "no such file"),
        ("place enas --executor cuda --devices A=cpu", "op 'stem' of 'enas[devices=2]' has no expression"),
        ("place chainmm", "no such file: chainmm"),
        ("place MODEL --executor cuda --devices A=cpu --data-shape [1,3,9,9]", "of fixed shapes"),
        ("bench MODEL --executor cuda --devices A=gpu", "device 'A=gpu' is not one that torch runs"),
        ("bench MODEL --placement TORCH --executor hetero", "for the CUDA engine"),
        ("export TORCH --format openvino -o FOLDER/x --model MODEL", "for the CUDA engine"),
        ("bench MODEL --executor hetero", "name one with --placement"),
        ("bench MODEL -m other.xml", "name the model once"),
        ("bench MODEL --executor cuda -d A=cpu -hint none", "OpenVINO's properties"),
        ("bench DYNAMIC", "give typical shapes with --data-shape"),
        ("inspect DYNAMIC --devices CPU", "--devices are asked about a model of known sizes"),
        ("doctor --budget soon", "is not a duration"),
        ("doctor --cuda --partition-cpu 99 --shape x --budget 1ms", "leave out --partition-cpu, --shape, --budget"),
        ("doctor --cuda m.xml --data-shape x --tokens 1", "leave out m.xml, --data-shape, --tokens"),
        ("compare PROBLEM --platform p100x4", "--platform does not go with a problem file"),
        ("compare PROBLEM --resume NONE.json", "no such file"),
        ("compare PROBLEM -o PROBLEM", "is read by this command"),
        ("explain MODEL", "is a model, and a placement file is expected"),
        ("report MODEL", "is a model, and a placement file is expected"),
        ("report NONE -o FOLDER", "is a folder; name the file to write"),
    ],
)
def test_a_mistake_is_one_line(complains: Complains, files: dict[str, Path], line: str, message: str) -> None:
    words = line.split()
    for name, path in files.items():
        words = [word.replace(name, str(path)) for word in words]
    assert message in complains(*words)


@pytest.mark.parametrize(
    "line",
    [
        "export PLACEMENT --model MODEL --format csv -o MODEL",
        "export PLACEMENT --model MODEL --format ort -o BESIDE.onnx",
        "place MODEL -o MODEL",
        "place MODEL --devices CPU -i FOLDER/text.bin -o FOLDER/text.bin",
        "bench MODEL --device CPU --trace STEM.bin",
        "profile MODEL --devices CPU -o STEM.bin",
    ],
)
def test_what_a_command_reads_is_never_overwritten(
    complains: Complains, tiny_resnet: Path, files: dict[str, Path], line: str
) -> None:
    read = [files["PLACEMENT"], *(path for path in sorted(tiny_resnet.parent.iterdir()) if path.is_file())]
    before = [path.read_bytes() for path in read]
    stems = {"STEM": tiny_resnet.with_suffix(""), "BESIDE": files["PLACEMENT"].with_suffix("")}
    for name, path in {**files, **stems}.items():
        line = line.replace(name, str(path))
    assert "is read by this command" in complains(*line.split())
    assert [path.read_bytes() for path in read] == before
