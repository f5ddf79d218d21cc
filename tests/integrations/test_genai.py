"""OpenVINO GenAI and benchmark_app run placed models over two CPU devices; ``make test-optimum``."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from safetensors.torch import save_file

from hsdag.api import export
from hsdag.exports.documents import submodels
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement
from tests.integrations.conftest import ARCHITECTURES, BITS, TARGET, deployed
from tests.placements import by_hand
from tests.stateful import CPUS, EXACT

genai: Any = pytest.importorskip("openvino_genai", reason="needs openvino-genai")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages under test

PAGE = Path(__file__).parents[2] / "docs" / "language-models.md"
NUM_TOKENS = 64
Hub = Callable[[str, str], Path]


def prompt(rows: tuple[tuple[int, ...], ...] = ((3, 14, 15, 92, 65),)) -> Any:
    ids = np.asarray(rows, dtype=np.int64)
    return genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))


def tokens(pipeline: Any, **options: Any) -> list[list[int]]:
    found = pipeline.generate(prompt(), max_new_tokens=NUM_TOKENS, ignore_eos=True, **options).tokens
    return [list(each) for each in found]


def one_device(folder: Path, **options: Any) -> Any:
    return genai.LLMPipeline(folder, "CPU", **EXACT, **options)


def two_devices(folder: Path, **options: Any) -> Any:
    return genai.LLMPipeline(folder, TARGET, extensions=[str(folder / "libhsdag.so")], **options)


def test_two_commands_and_up_to_five_lines_of_the_page_take_a_folder_to_text_over_two_devices(
    tmp_path: Path, hub: Hub
) -> None:
    """For CPU devices in place of the page's, neither of which holds the whole model with its state."""
    blocks = re.findall(r"```(?:bash|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:2]
    commands, lines = ([line.replace("GPU.", "CPU_") for line in block.splitlines() if line] for block in blocks)
    assert len(commands) == 2
    assert len(lines) <= 5
    shutil.copytree(hub("llama", "fp16"), tmp_path / "llama")
    commands[0] += " --memory CPU_0=1.6MB,CPU_1=1.6MB --executor hetero --budget 40s"
    for command in commands:
        ran_in(tmp_path, "-m", *shlex.split(command))
    assert set(Placement.load(tmp_path / "llama.placement.json").used_devices) == {"CPU_0", "CPU_1"}
    expected = one_device(tmp_path / "llama", ATTENTION_BACKEND="SDPA").generate("Hello", max_new_tokens=100)
    assert ran_in(tmp_path, "-c", "\n".join(lines)) == f"{expected}\n"


def ran_in(folder: Path, *words: str) -> str:
    """What Python prints."""
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("precision", list(BITS))
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_greedy_tokens_are_those_of_one_device(tmp_path: Path, hub: Hub, architecture: str, precision: str) -> None:
    folder = hub(architecture, precision)
    expected = tokens(one_device(folder, ATTENTION_BACKEND="SDPA"))
    for k, share in enumerate((0.25, 0.5, 0.8)):
        assert tokens(two_devices(deployed(folder, share, tmp_path / str(k)))) == expected


def test_beams_batches_chats_and_streams_are_those_of_one_device(tmp_path: Path, hub: Hub) -> None:
    folder = hub("llama", "int4")
    answers = []
    for pipeline in (
        one_device(folder, ATTENTION_BACKEND="SDPA"),
        two_devices(deployed(folder, 0.5, tmp_path / "out")),
    ):
        batch = pipeline.generate(prompt(((3, 14, 15), (3, 14, 92))), max_new_tokens=8, ignore_eos=True).tokens
        streamed: list[str] = []
        text = pipeline.generate("the quick brown", max_new_tokens=8, ignore_eos=True, streamer=streamed.append)
        pipeline.start_chat()
        chat = [pipeline.generate(said, max_new_tokens=8, ignore_eos=True) for said in ("the quick", "brown", "fox")]
        pipeline.finish_chat()
        beams = tokens(pipeline, num_beams=3), tokens(pipeline, num_beams=4, num_beam_groups=2, diversity_penalty=1.0)
        sampled = tokens(pipeline, do_sample=True, rng_seed=1)
        answers.append((batch, text, "".join(streamed), chat, beams, sampled))
    assert answers[0] == answers[1]
    assert any(answers[0][3])


def test_paged_attention_and_adapters_are_refused_by_hetero(tmp_path: Path, hub: Hub) -> None:
    """As docs/deploy.md and ``hsdag doctor`` say."""
    folder = deployed(hub("llama", "int4"), 0.5, tmp_path / "out")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    draft = genai.draft_model(hub("llama", "int4"), "CPU")
    layer = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    save_file(
        {f"{layer}A.weight": torch.ones(4, 64), f"{layer}B.weight": torch.ones(64, 4)}, tmp_path / "adapter.safetensors"
    )
    adapters = genai.AdapterConfig(genai.Adapter(tmp_path / "adapter.safetensors"))
    for options in (
        {"ATTENTION_BACKEND": "PA"}, {"scheduler_config": scheduler}, {"draft_model": draft}, {"prompt_lookup": True},
        {"adapters": adapters},
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="some layers eg"):
            two_devices(folder, **options)


@pytest.mark.parametrize("damage", ["missing", "wrong"])
def test_an_affinity_that_is_missing_or_wrong_is_seen(tmp_path: Path, hub: Hub, damage: str) -> None:
    """HETERO refuses the model."""
    folder = deployed(hub("llama", "fp16"), 0.5, tmp_path / "out")
    xml = folder / "openvino_model.xml"
    text = xml.read_text()
    product = re.compile(r'type="MatMul".*?(<user_data name="affinity" value="CPU_0" version="" />)', re.DOTALL)
    first = product.search(text)
    assert first is not None
    other = "" if damage == "missing" else first[1].replace("CPU_0", "CPU_1")
    xml.write_text(text[: first.start(1)] + other + text[first.end(1) :])
    core = ov.Core()
    core.add_extension(folder / "libhsdag.so")
    refused = "some layers eg" if damage == "missing" else "undeclared parameters"  # a variable's ops are parted
    with pytest.raises(RuntimeError, match=refused):
        core.compile_model(xml, TARGET)


def test_optimum_intel_generates_with_the_folder_on_one_device_and_on_both(tmp_path: Path, hub: Hub) -> None:
    """On one without the library, on both with it."""
    from optimum.intel import OVModelForCausalLM
    from optimum.intel.openvino.modeling_base import core

    folder, given = hub("llama", "fp16"), torch.tensor([[3, 14, 15, 92, 65]])
    out = deployed(folder, 0.5, tmp_path / "out")
    found = []
    for each, device in ((folder, "CPU"), (out, "CPU"), (out, TARGET)):
        if device == TARGET:
            core.add_extension(out / "libhsdag.so")
        model = OVModelForCausalLM.from_pretrained(str(each), device=device, ov_config={**EXACT, "CACHE_DIR": ""})
        options = {"attention_mask": torch.ones_like(given), "max_new_tokens": 16, "do_sample": False}
        found.append(model.generate(given, **options).tolist())
    assert found[0] == found[1] == found[2]
    assert model.request.get_compiled_model().get_property("HETERO_NUMBER_OF_SUBMODELS") == 2


def test_benchmark_app_runs_hetero_placements_with_as_many_submodels_as_predicted(tmp_path: Path) -> None:
    from hsdag.models import save_model_files

    path = save_model_files("tiny_resnet", tmp_path / "m.xml")
    graph = graph_of(load_model(path))
    units = placement_units(graph)
    for k in range(3):
        rng = random.Random(k)
        labels = [rng.randrange(2) for _ in range(units.graph.num_ops)]
        placement = by_hand(graph, CPUS, [CPUS[labels[u]].name for u in units.partition.labels])
        out = tmp_path / str(k)
        export(placement, "openvino", out, path)
        options = "-niter 4 -nireq 1 -hint none -api sync -iop images:f32".split()  # another type adds a Convert
        command: list[str | Path] = [Path(sys.executable).with_name("benchmark_app"), "-m", out / "model.xml"]
        command += ["-d", TARGET, "-extensions", out / "libhsdag.so", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.findall(r"HETERO_NUMBER_OF_SUBMODELS: (\d+)", done.stdout)
        assert found == [str(submodels(placement, graph).num_groups)], done.stdout
        assert "Throughput:" in done.stdout
