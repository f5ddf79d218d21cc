"""Say which features of OpenVINO GenAI a placed model of a folder can use; tested with OpenVINO GenAI 2026.4.1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import openvino as ov

from hsdag.base.errors import ExecutionError, option
from hsdag.exports.language import CONFIGURATION, LLM, NO_EXTENSIONS, VLM, WHISPER, pipeline_of
from hsdag.exports.library import toolchain
from hsdag.ir.graph.reader import network_in

TOKENIZER = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
TEMPLATE = "chat_template"
TEMPLATE_FILES = ("openvino_tokenizer.xml", "tokenizer_config.json", "chat_template.jinja")
PAGED_ATTENTION = "paged attention replaces attention and cache, and HETERO refuses its ops, which have no device"


@dataclass(frozen=True)
class Feature:
    """A feature of text generation: why no placed model can use it, and whether it needs a chat template or VLM."""

    obstacle: str | None = None
    is_chat: bool = False
    sees: bool = False


FEATURES = {
    "default attention": Feature(),
    "ATTENTION_BACKEND=SDPA": Feature(),
    "streaming": Feature(),
    "beam search": Feature(),
    "chat": Feature(is_chat=True),
    "prefix reuse in chats": Feature(is_chat=True),
    "pictures (VLMPipeline)": Feature(sees=True),
    "speech (WhisperPipeline)": Feature(NO_EXTENSIONS),
    "scheduler configuration (continuous batching)": Feature(PAGED_ATTENTION),
    "speculative decoding, prompt lookup": Feature(f"they need paged attention: {PAGED_ATTENTION}"),
    "LoRA adapters": Feature(
        "GenAI adds ops or constants for them, and HETERO refuses those, which have no device: merge an adapter into "
        "the weights before placing"
    ),
}


def genai_features(source: Path, model: ov.Model, num_devices: int) -> dict[str, str | None]:
    """Return, by feature, why a placed model of the folder cannot use it on this machine; None if it can.

    Empty for a file, and for a network that does not generate.
    """
    pipeline = pipeline_of(model, network_in(source).name) if source.is_dir() else ""
    general = NO_EXTENSIONS if pipeline == WHISPER else _obstacle(source, num_devices)
    reasons: dict[str, str | None] = {}
    for name, feature in FEATURES.items() if pipeline else ():
        reasons[name] = feature.obstacle or general
        if reasons[name] is None and feature.sees and pipeline != VLM:
            reasons[name] = f"the folder is for {LLM}"
        elif reasons[name] is None and feature.is_chat and not _has_template(source):
            reasons[name] = f"there is no {TEMPLATE} in {', '.join(TEMPLATE_FILES)}"
    return reasons


def _obstacle(folder: Path, num_devices: int) -> str | None:
    """Return what prevents any placed model of a folder from running in GenAI here."""
    if num_devices < 2:
        return f"a placement needs two devices: {option('partition_cpu')} 2 makes two of the CPU"
    try:
        toolchain()
    except ExecutionError as error:
        return f"the extension library cannot be compiled here: {error}"
    missing = [name for name in (CONFIGURATION, *TOKENIZER) if not (folder / name).is_file()]
    return f"the folder lacks {' and '.join(missing)}" if missing else None


def _has_template(folder: Path) -> bool:
    """Return whether the folder has a chat template."""
    files = [folder / name for name in TEMPLATE_FILES if (folder / name).is_file()]
    return any(TEMPLATE in file.name or TEMPLATE in file.read_text(encoding="utf-8") for file in files)
