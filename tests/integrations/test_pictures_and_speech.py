"""OpenVINO GenAI runs a placed model that sees over two CPU devices, but no Whisper; ``make test-optimum``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch

from hsdag.api import export
from hsdag.exports.language import NO_EXTENSIONS
from tests.integrations.conftest import SIZES, TARGET, VOCABULARY, deployed, placed, write_tokenizer
from tests.stateful import EXACT

genai: Any = pytest.importorskip("openvino_genai", reason="needs openvino-genai")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages under test

SIDE = 28


def exported(network: Any, kind: str, folder: Path, preprocessor: dict[str, Any]) -> Path:
    """A network of transformers as optimum-intel exports it, by a class of its own."""
    import optimum.intel

    network.save_pretrained(folder / "torch")
    options = {"export": True, "compile": False, "load_in_8bit": False}
    getattr(optimum.intel, kind).from_pretrained(folder / "torch", **options).save_pretrained(folder / "hub")
    write_tokenizer(folder / "hub")
    (folder / "hub" / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder / "hub"


def llava(folder: Path) -> Path:
    import transformers

    text = transformers.LlamaConfig(**{**SIZES, "vocab_size": VOCABULARY + 1})
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=14
    )
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=VOCABULARY, image_seq_length=(SIDE // 14) ** 2
    )
    given = {
        "image_processor_type": "CLIPImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.3] * 3,
        "crop_size": {"height": SIDE, "width": SIDE}, "size": {"shortest_edge": SIDE},
    }  # fmt: skip
    network = transformers.LlavaForConditionalGeneration(config)
    return exported(network, "OVModelForVisualCausalLM", folder, given)


def whisper(folder: Path) -> Path:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_target_positions=64, pad_token_id=2,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, begin_suppress_tokens=None,
    )  # fmt: skip
    given = transformers.WhisperFeatureExtractor(feature_size=80).to_dict()
    return exported(transformers.WhisperForConditionalGeneration(config), "OVModelForSpeechSeq2Seq", folder, given)


def seen(pipeline: Any) -> list[Any]:
    picture = ov.Tensor(np.random.default_rng(0).integers(0, 255, (1, SIDE, SIDE, 3)).astype(np.uint8))
    options = {"images": [picture], "max_new_tokens": 12, "ignore_eos": True}
    streamed: list[str] = []
    pipeline.generate("the quick", streamer=streamed.append, **options)
    history = genai.ChatHistory()
    for role, content in (("user", "the quick"), ("assistant", "two devices"), ("user", "fox")):
        history.append({"role": role, "content": content})
        if role == "user":
            streamed.append(pipeline.generate(history, **options).texts[0])
            options["images"] = []
    return [streamed, pipeline.generate("the quick", num_beams=3, **options).texts]


def test_a_placed_model_that_sees_says_what_it_says_on_one_device(tmp_path: Path) -> None:
    """With the attention that GenAI uses over several devices, too."""
    torch.manual_seed(0)
    folder = llava(tmp_path)
    expected = seen(genai.VLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA", **EXACT))
    for share in (0.3, 0.7):
        out = deployed(folder, share, tmp_path / str(share))
        assert "openvino_genai.VLMPipeline(" in (out / "README.md").read_text()
        assert seen(genai.VLMPipeline(out, TARGET, extensions=[str(out / "libhsdag.so")])) == expected


def test_whisper_takes_no_extension_library_as_export_says(tmp_path: Path) -> None:
    folder = whisper(tmp_path)
    result = export(placed(folder, 0.5), "openvino", tmp_path / "out", folder)
    assert result.notes == (f"in OpenVINO GenAI the placement has no effect: {NO_EXTENSIONS}",)
    assert "openvino_genai" not in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(RuntimeError, match="Unsupported property extensions"):
        genai.WhisperPipeline(folder, "CPU", extensions=[str(tmp_path / "out" / "libhsdag.so")])
