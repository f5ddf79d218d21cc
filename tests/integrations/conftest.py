"""Folders of language models as model hubs have them, and two further CPU devices in programs that know none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest
import torch

from hsdag.api import export
from hsdag.exports.usage import Usage, plugins_text
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement
from tests.placements import by_hand
from tests.stateful import CPUS

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "a placement says which device runs which op",
    "two devices are better than one where a model is larger than each of them",
)
VOCABULARY = 120
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
ARCHITECTURES = {
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "phi3": ("Phi3", {}),
    "qwen2": ("Qwen2", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""The name that transformers gives a model, and what its configuration has of its own."""

BITS = {"fp16": None, "int8": 8, "int4": 4}

TARGET = "HETERO:CPU_0,CPU_1"


@pytest.fixture(scope="session", autouse=True)
def devices_of_every_program() -> None:
    """CPU_0 and CPU_1, by the file that OpenVINO reads beside its library; this environment has one of its own."""
    pytest.importorskip("openvino_genai", reason="make test-optimum has it, in an environment of its own")
    libraries = Path(ov.__file__).parent / "libs"
    assert libraries.is_relative_to(sys.prefix), (
        "the environment has no OpenVINO of its own: remove it, and make it anew"
    )
    text = plugins_text(Usage("", "", "", {}, CPUS))
    file = libraries / "plugins.xml"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def placed(folder: Path, share: float) -> Placement:
    """The first share of the placement units, in order, on the first device, and all others on the second."""
    model = load_model(folder, dynamic=True)
    graph = graph_of(model)
    units = placement_units(graph)
    late = units.partition.labels >= units.graph.num_ops * share
    return by_hand(graph, CPUS, [CPUS[int(second)].name for second in late], data_shapes=())


def deployed(folder: Path, share: float, out: Path) -> Path:
    """What ``hsdag export`` writes of such a placement."""
    export(placed(folder, share), "openvino", out, folder)
    return out


def write_tokenizer(folder: Path) -> None:
    """Train a tokenizer on a few sentences, for transformers and for OpenVINO."""
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special))
    named = dict(zip(("unk_token", "bos_token", "eos_token"), special, strict=True))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="</s>", **named)
    whole.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}"
    whole.save_pretrained(folder)
    for model, name in zip(convert_tokenizer(whole, with_detokenizer=True), ("tokenizer", "detokenizer"), strict=True):
        ov.save_model(model, folder / f"openvino_{name}.xml")


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder of a small model of an architecture, with random weights, as optimum-intel exports it."""
    made: dict[tuple[str, str], Path] = {}

    def folder_of(architecture: str, precision: str) -> Path:
        if (architecture, precision) not in made:
            made[architecture, precision] = _exported(architecture, precision, tmp_path_factory.mktemp(architecture))
        return made[architecture, precision]

    return folder_of


def _exported(architecture: str, precision: str, folder: Path) -> Path:
    import transformers
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    name, own = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **own)
    network = getattr(transformers, f"{name}ForCausalLM")(config)
    network.save_pretrained(folder / "torch")
    bits = BITS[precision]
    scheme = (
        None
        if bits is None
        else OVWeightQuantizationConfig(bits=bits, sym=bits == 8, group_size=-1 if bits == 8 else 32)
    )
    model = OVModelForCausalLM.from_pretrained(
        folder / "torch", export=True, compile=False, load_in_8bit=False, quantization_config=scheme
    )
    model.save_pretrained(folder / "hub")
    write_tokenizer(folder / "hub")
    (folder / "hub" / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 2}))
    return folder / "hub"
