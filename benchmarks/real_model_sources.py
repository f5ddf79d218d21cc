"""Models that strangers wrote: files that packages ship, definitions with random weights, and quantised variants.

Nothing is downloaded beyond the packages of ``real_models_requirements.txt``, and a source whose package is missing is
left out. A definition is converted once and kept as an IR in a folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

FOLDER = Path("artifacts", "real-models")
"""Where converted models are kept."""
IMAGE = (1, 3, 64, 64)
NUM_TOKENS = 12
SEED = 0


@dataclass(frozen=True)
class Source:
    """A model and the package that it needs, which is imported as ``module``.

    It lies at ``made`` inside the package, and ``shapes`` fixes its dynamic inputs; or ``made`` makes it, with static
    shapes. Integer inputs are drawn from ``integers``, the upper end excluded.
    """

    name: str
    needs: str
    made: str | Callable[[], ov.Model]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    integers: tuple[int, int] = (0, 2)
    module: str = ""

    @property
    def shipped(self) -> Path | None:
        """The package, or the file in it; None where it is not installed."""
        spec = importlib.util.find_spec(self.module or self.needs.replace("-", "_"))
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(spec.submodule_search_locations[0], self.made if isinstance(self.made, str) else "")
        return path if path.exists() else None

    def file(self, folder: Path) -> Path:
        """The model's file, built into ``folder`` where it is not there yet."""
        if isinstance(self.made, str):
            assert self.shipped is not None
            return self.shipped
        path = folder / f"{self.name}.xml"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            ov.save_model(self.made(), path, compress_to_fp16=self.name.endswith("-fp16"))
        return path


def in_process(
    function: Callable[..., None], *arguments: str | int, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """What a function of a benchmark prints in a process of its own, which may die. Raises TimeoutExpired."""
    folder, name = str(Path(__file__).parent), Path(sys.argv[0]).stem
    code = f"import sys; sys.path.insert(0, {folder!r}); import {name}; {name}.{function.__name__}{arguments!r}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit_s)


def all_sources() -> list[Source]:
    """Every model that benchmarks know, quickest to get first."""
    return [*shipped(), *defined(), *quantised()]


def shipped() -> list[Source]:
    """Model files inside packages."""
    light = "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512"
    state = {"input": (1, 576)}
    found = [Source(f"light-{name}", "onnx", f"backend/test/data/light/light_{name}.onnx") for name in light.split()]
    files = (
        ("pitch-onnx", "basic-pitch", "saved_models/icassp_2022/nmp.onnx", {"": (1, 43844, 1)}),
        ("pitch-tflite", "basic-pitch", "saved_models/icassp_2022/nmp.tflite", {"": (1, 43844, 1)}),
        ("captcha", "ddddocr", "common.onnx", {"": (1, 1, 64, 96)}),
        ("captcha-old", "ddddocr", "common_old.onnx", {"": (1, 1, 64, 96)}),
        ("captcha-detection", "ddddocr", "common_det.onnx", {}),
        ("file-type", "magika", "models/standard_v3_3/model.onnx", {"": (1, 2048)}),
        ("nudity", "nudenet", "320n.onnx", {"": (1, 3, 160, 160)}),
        ("ocr6-detection", "rapidocr", "models/PP-OCRv6_det_small.onnx", {"": (1, 3, 96, 96)}),
        ("ocr6-recognition", "rapidocr", "models/PP-OCRv6_rec_small.onnx", {"": (1, 3, 48, 96)}),
        ("ocr6-angle", "rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", {"": (1, 3, 48, 96)}),
        ("ocr4-detection", "rapidocr-onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"": (1, 3, 96, 96)}),
        ("ocr4-recognition", "rapidocr-onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"": (1, 3, 48, 96)}),
        ("voice-sequence", "silero-vad", "data/silero_vad_16k_sequence.onnx", state),
        ("voice-openvino", "silero-vad", "data/silero_vad_openvino_16k.onnx", {}),
        ("voice6", "faster-whisper", "assets/silero_vad_v6.onnx", state),
    )
    found += [Source(*each) for each in files]
    tashkeel = {"char_inputs": (1, 24), "diac_inputs": (1, 24), "input_lengths": (1,)}
    return [*found, Source("diacritics", "piper-tts", "tashkeel/model.onnx", tashkeel, (8, 12), "piper")]


def defined() -> list[Source]:
    """Definitions of transformers, of torchvision, and of ultralytics' detectors, with random weights."""
    names = "Bert Roberta DistilBert Albert Electra MobileBert DebertaV2 T5Encoder GPT2 Llama Qwen2 Mixtral Mamba "
    names += "ViT CLIPVision Segformer Swin"
    found = [Source(f"hf-{name}", "transformers", lambda n=name: _transformers(n)) for name in names.split()]
    found.append(Source("torch-LSTM", "torch", _recurrent))
    found.append(Source("hf-WhisperEncoder", "transformers", lambda: _whisper("encoder")))
    found.append(Source("hf-WhisperDecoder", "transformers", lambda: _whisper("decoder")))
    names = "resnet18 mobilenet_v3_small shufflenet_v2_x0_5 squeezenet1_1 efficientnet_b0 mnasnet0_5 regnet_y_400mf"
    found += [Source(f"tv-{name}", "torchvision", lambda n=name: _torchvision(n)) for name in names.split()]
    found.append(Source("tv-googlenet", "torchvision", lambda: _torchvision("googlenet", init_weights=False)))
    return found + [Source(n, "ultralytics", lambda n=n: _yolo(n)) for n in ("yolov8n", "yolov10n", "yolo11n")]


def quantised() -> list[Source]:
    """Variants of the models above: weights in 16 bits, in 8 and 4 bits by NNCF, and all in 8 bits by NNCF."""
    vision, language = ("resnet18", "regnet_y_400mf", "shufflenet_v2_x0_5"), ("Bert", "GPT2", "Llama", "Qwen2")
    found = [Source(f"tv-{n}-int8", "nncf", lambda n=n: _quantise(_torchvision(n))) for n in vision]
    for name in language:
        found.append(Source(f"hf-{name}-int8w", "nncf", lambda n=name: _compress(_transformers(n), "INT8_ASYM")))
        found.append(Source(f"hf-{name}-int4w", "nncf", lambda n=name: _compress(_transformers(n), "INT4_SYM")))
    found.append(Source("tv-mnasnet0_5-fp16", "torchvision", lambda: _torchvision("mnasnet0_5")))
    found.append(Source("hf-Bert-fp16", "transformers", lambda: _transformers("Bert")))
    return found


_DECLARED: list[Any] = []


def _module(name: str) -> Any:
    """A package on top of torch, with random weights that are the same in every process.

    The torchvision of the registry is built for other builds of torch than the CPU's and then lacks its compiled
    operators. These definitions do not call them, but they have to be declared.
    """
    import torch

    os.environ.setdefault("YOLO_VERBOSE", "False")
    if not _DECLARED:
        _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
        for operator in ("nms", "qnms"):
            _DECLARED[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.manual_seed(SEED)
    return importlib.import_module(name)


def _convert(network: Any, *shape: int, **example: Any) -> ov.Model:
    """A torch network for an image of ``shape`` or for named tensors.

    It is traced once; OpenVINO would trace it a second time, to compare.
    """
    import torch

    inputs = tuple(example.values()) or (torch.zeros(shape),)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        given = {"example_kwarg_inputs": example} if example else {"example_inputs": inputs}
        traced = torch.jit.trace(network.eval(), check_trace=False, strict=False, **given)
        model = ov.convert_model(traced, example_input=example or inputs)
    named = {name: ov.PartialShape(list(value.shape)) for name, value in example.items()}
    model.reshape(named or ov.PartialShape(list(shape)))
    return model


def _torchvision(name: str, **options: Any) -> ov.Model:
    return _convert(_module("torchvision").models.get_model(name, weights=None, **options), *IMAGE)


def _yolo(name: str) -> ov.Model:
    _module("torchvision")
    network = _module("ultralytics.nn.tasks").DetectionModel(f"{name}.yaml", verbose=False).eval()
    network.model[-1].export, network.model[-1].format = True, "openvino"
    return _convert(network, 1, 3, 96, 96)


def _transformers(name: str) -> ov.Model:
    """The bare model of a family, two layers of width 64 where the family leaves the choice."""
    import torch

    package = _module("transformers")
    sizes: dict[str, Any] = {"num_hidden_layers": 2}
    if name not in ("MobileBert", "Segformer", "Swin", "T5Encoder"):
        sizes |= {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    own: dict[str, dict[str, Any]] = {each: {"embedding_size": 32} for each in ("Albert", "Electra")}
    own |= {each: {"num_key_value_heads": 2} for each in ("Llama", "Qwen2", "Mixtral")}
    own["Mixtral"] = {**own["Mixtral"], "num_local_experts": 4}
    own["T5Encoder"] = {"num_layers": 2, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4}
    vision = {"ViT": {"image_size": 64}, "CLIPVision": {"image_size": 64, "patch_size": 16}, "Segformer": {}}
    vision["Swin"] = {"image_size": 64, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    sizes |= vision[name] if name in vision else {"vocab_size": 1000, **own.get(name, {})}
    kind = name.removesuffix("Encoder")
    sizes["return_dict"] = name == "Swin"
    config = getattr(package, f"{kind}Config")(**sizes, attn_implementation="eager")
    if name == "Mixtral":
        config._experts_implementation = "batched_mm"
    if hasattr(config, "use_cache"):
        config.use_cache = False
    network = getattr(package, f"{name}Model")(config)
    if name in vision:
        return _convert(network, *IMAGE)
    return _convert(_of_whole_sentences(network), ids=torch.ones((1, NUM_TOKENS), dtype=torch.int64))


def _of_whole_sentences(network: Any) -> Any:
    """A language model that masks no token: without a mask, it looks for sentences that were packed together."""
    import torch

    class WholeSentences(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: torch.Tensor, heard: torch.Tensor | None = None) -> Any:
            more = {} if heard is None else {"encoder_hidden_states": heard}
            return self.network(input_ids=ids, attention_mask=torch.ones_like(ids), **more)

    return WholeSentences()


def _recurrent() -> ov.Model:
    """Two layers of LSTM and a projection."""
    torch = _module("torch")

    class Recurrent(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.last = torch.nn.LSTM(32, 64, 2, batch_first=True), torch.nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.last(torch.tanh(self.cells(x)[0]))

    return _convert(Recurrent(), 1, NUM_TOKENS, 32)


def _whisper(half: str) -> ov.Model:
    """Two layers of width 64 of one half of Whisper, for a second of speech."""
    import torch

    package = _module("transformers")
    layers = {f"{h}_{what}": n for h in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))}
    config = package.WhisperConfig(
        d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=50, max_target_positions=NUM_TOKENS,
        vocab_size=1000, return_dict=False, use_cache=False, attn_implementation="eager", pad_token_id=0, **layers,
    )  # fmt: skip
    network = getattr(package.WhisperModel(config), half)
    if half == "encoder":
        return _convert(network, 1, config.num_mel_bins, 100)
    ids = torch.ones((1, NUM_TOKENS), dtype=torch.int64)
    return _convert(_of_whole_sentences(network), ids=ids, heard=torch.zeros(1, 50, 64))


def _quantise(model: ov.Model) -> ov.Model:
    import nncf

    rng = np.random.default_rng(SEED)
    images = [rng.standard_normal(IMAGE).astype(np.float32) for _ in range(4)]
    quantised: ov.Model = nncf.quantize(model, nncf.Dataset(images), subset_size=len(images))
    return quantised


def _compress(model: ov.Model, mode: str) -> ov.Model:
    import nncf

    options = {"group_size": 32, "ratio": 1.0} if mode.startswith("INT4") else {}
    compressed: ov.Model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **options)
    return compressed
