"""What OpenVINO GenAI can do with a placed folder; tests/integrations tries it with the real one."""

from __future__ import annotations

import sys
from pathlib import Path

import openvino as ov
import pytest

from hsdag.commands.doctor.genai import FEATURES, TEMPLATE_FILES, TOKENIZER, genai_features
from hsdag.exports import library
from tests.hsdag.ir.growing import chain_model, growing_model

GENERATION = {"default attention", "ATTENTION_BACKEND=SDPA", "streaming", "beam search"}
TEXT = GENERATION | {"chat", "prefix reuse in chats"}


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any program: nothing is compiled."""
    monkeypatch.setattr(library, "COMPILERS", (sys.executable,))


def folder_of(path: Path, network: str = "openvino_model.xml") -> Path:
    for name in (network, "config.json", *TOKENIZER):
        (path / name).write_text("{}")
    (path / TEMPLATE_FILES[-1]).write_text("{{ messages }}")
    return path


@pytest.fixture
def model() -> ov.Model:
    """A network that keeps state and gives logits."""
    model = growing_model()
    model.output(0).set_names({"logits"})
    return model


def usable(folder: Path, model: ov.Model, num_devices: int = 2) -> set[str]:
    return {name for name, obstacle in genai_features(folder, model, num_devices).items() if obstacle is None}


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("openvino_model.xml", TEXT),
        ("openvino_language_model.xml", TEXT | {"pictures (VLMPipeline)"}),
        ("openvino_decoder_model.xml", set()),
    ],
)
def test_a_folder_has_what_its_pipeline_has(tmp_path: Path, model: ov.Model, network: str, expected: set[str]) -> None:
    assert usable(folder_of(tmp_path, network), model) == expected


def test_what_needs_paged_attention_or_further_ops_says_so(tmp_path: Path, model: ov.Model) -> None:
    found = genai_features(folder_of(tmp_path), model, 2)
    assert "paged attention" in str(found["scheduler configuration (continuous batching)"])
    assert "paged attention" in str(found["speculative decoding, prompt lookup"])
    assert "merge an adapter into the weights" in str(found["LoRA adapters"])


@pytest.mark.parametrize("file", ["config.json", *TOKENIZER])
def test_a_folder_without_its_files_says_which_one_is_missing(tmp_path: Path, model: ov.Model, file: str) -> None:
    (folder_of(tmp_path) / file).unlink()
    assert genai_features(tmp_path, model, 2)["default attention"] == f"the folder lacks {file}"
    assert usable(tmp_path, model) == set()


@pytest.mark.parametrize("file", [*TEMPLATE_FILES, None])
def test_chats_need_a_template_in_one_of_three_files(tmp_path: Path, model: ov.Model, file: str | None) -> None:
    (folder_of(tmp_path) / TEMPLATE_FILES[-1]).unlink()
    if file is not None:
        (tmp_path / file).write_text('"chat_template"')
    assert usable(tmp_path, model) == (TEXT if file is not None else GENERATION)


def test_two_devices_and_a_compiler_are_needed(
    tmp_path: Path, model: ov.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "needs two devices" in str(genai_features(folder_of(tmp_path), model, 1)["streaming"])
    monkeypatch.setattr(library, "COMPILERS", ("no-such-compiler",))
    assert "there is no C++ compiler" in str(genai_features(tmp_path, model, 2)["streaming"])


def test_files_and_networks_that_do_not_generate_have_no_such_features(tmp_path: Path, model: ov.Model) -> None:
    folder = folder_of(tmp_path)
    assert set(genai_features(folder, model, 2)) == set(FEATURES)
    assert genai_features(folder / "openvino_model.xml", model, 2) == {}
    assert genai_features(folder, growing_model(), 2) == genai_features(folder, chain_model(), 2) == {}
