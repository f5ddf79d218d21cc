"""Models of the real optimum-intel, tiny and random, that generate over two CPU devices; ``make test-optimum``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hsdag.base.errors import ModelError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.placement import ExecutorName
from tests.stateful import CPUS, EXACT, PROMPT, placement_of, split_after

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages under test
AFTER_LAYER_0 = "__module.model.layers.0/aten::add/Add_1"


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Llama of two layers as optimum-intel exports it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    pytest.importorskip("optimum.intel", reason="needs optimum-intel: pip install -e '.[optimum]'")
    from optimum.intel import OVModelForCausalLM
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, bos_token_id=1, eos_token_id=None)
    folder: Path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return OVModelForCausalLM.from_pretrained(
        folder, export=True, compile=False, load_in_8bit=False, ov_config={**EXACT, "CACHE_DIR": ""}
    )


def generated(model: Any, **options: Any) -> list[list[int]]:
    prompt = torch.tensor([PROMPT])
    tokens = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, **options
    )
    found: list[list[int]] = tokens.tolist()
    return found


@pytest.mark.parametrize("executor", ["hetero", "work-conserving"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_placed_model_generates_what_optimum_makes_it_generate(
    language_model: Any, executor: ExecutorName, beams: int
) -> None:
    from hsdag.optimum import use_placement

    language_model.clear_requests()
    language_model.compile()
    expected = generated(language_model, num_beams=beams)
    halves = split_after(graph_of(language_model.model), AFTER_LAYER_0)
    use_placement(language_model, placement_of(language_model.model, halves, executor=executor))
    assert generated(language_model, num_beams=beams) == expected
    names = {state.name for state in language_model.request.query_state()}
    assert len(names) == 4


def test_place_measures_and_has_its_answer_used(language_model: Any) -> None:
    from hsdag.optimum import place

    result = place(
        language_model, [f"{spec.name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for spec in CPUS],
        tokens="4,1+4", budget="15s", method="pipeline",
    )  # fmt: skip
    assert set(result.placement.used_devices) <= {"CPU_0", "CPU_1", "CPU"}
    assert len(generated(language_model)[0]) == len(PROMPT) + 64


def test_a_model_without_a_network_is_refused(language_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hsdag.optimum import use_placement

    placement = placement_of(language_model.model, [0] * len(language_model.model.get_ordered_ops()))
    monkeypatch.setattr(language_model, "model", None)
    with pytest.raises(ModelError, match="holds a NoneType and no network to place: load it without compile_only=True"):
        use_placement(language_model, placement)
