"""The zoo's networks in torch, with seeded random weights, and their conversion to OpenVINO.

Legend: B batch, C channels, H rows, W columns, K image classes; for language models T tokens, D width of a token, A
heads.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import openvino as ov
import torch
from torch import nn
from torch.nn import functional

from hsdag.ir.graph.build import name_by_consumer
from hsdag.ir.graph.reader import quiet_conversion
from hsdag.models.sizes import BertSizes, InceptionSizes, ModelInput, ResNetSizes

Network = TypeVar("Network", bound=nn.Module)


def random_network(make: Callable[[], Network], seed: int) -> Network:
    """Return the network that ``make`` builds, in evaluation mode, with weights drawn from ``seed``.

    Convolutions have variance 2 / fan-in (He et al. 2015, eq. 10), linear layers 1 / fan-in, embeddings 1. Scales of
    norms and running variances lie in [0.8, 1.2]. Shifts, biases and running means lie in [-0.1, 0.1] but at least 0.02
    from zero, because the converter folds away what is exactly zero. Torch's global generator is left alone.
    """
    with torch.device("meta"):  # shapes only, because torch's initialisation would be overwritten
        network = make()
    network.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in network.modules():
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                _fill(part, name, tensor, generator)
    return network.eval()


def _fill(part: nn.Module, name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw one parameter or buffer of a module in place."""
    match part, name:
        case nn.Conv2d(), "weight":
            fan_in = part.in_channels // part.groups * math.prod(part.kernel_size)
            tensor.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
        case nn.Linear(), "weight":
            tensor.normal_(0.0, math.sqrt(1.0 / part.in_features), generator=generator)
        case nn.Embedding(), "weight":
            tensor.normal_(0.0, 1.0, generator=generator)
        case BranchNorm(), "weight":
            tensor.uniform_(0.8, 1.2, generator=generator).mul_(BRANCH_SCALE)
        case nn.LayerNorm() | nn.BatchNorm2d(), "weight" | "running_var":
            tensor.uniform_(0.8, 1.2, generator=generator)
        case nn.Linear() | nn.LayerNorm() | nn.BatchNorm2d(), "bias" | "running_mean":
            tensor.uniform_(-0.08, 0.08, generator=generator)
            tensor.add_(torch.where(tensor < 0, -0.02, 0.02))
        case nn.BatchNorm2d(), "num_batches_tracked":
            tensor.zero_()
        case _:
            raise AssertionError(f"{name} of {part} keeps garbage")


TORCH_TYPES = {"f32": torch.float32, "i64": torch.int64}


def to_openvino(network: nn.Module, name: str, inputs: Sequence[ModelInput], outputs: Sequence[str]) -> ov.Model:
    """Convert the network to an OpenVINO model with this name, these inputs and outputs, and weights still in f32.

    Op names are unique and the same in every process, so that a placement fits a model that is built again.
    """
    example = tuple(torch.ones(x.shape, dtype=TORCH_TYPES[x.element_type]) for x in inputs)
    with quiet_conversion(), torch.no_grad():
        # traced here, because convert_model would trace the network twice to check the result
        traced = torch.jit.trace(network, example, check_trace=False)  # type: ignore[no-untyped-call]
        model = ov.convert_model(traced, input=[list(model_input.shape) for model_input in inputs])
    model.set_friendly_name(name)
    for parameter, model_input in zip(model.get_parameters(), inputs, strict=True):
        parameter.set_friendly_name(model_input.name)
        parameter.output(0).get_tensor().set_names({model_input.name})
    for result, output_name in zip(model.get_results(), outputs, strict=True):
        result.set_friendly_name(f"{output_name}/result")
        result.input_value(0).get_tensor().set_names({output_name})
    name_by_consumer(model)
    return model


def compressed(model: ov.Model) -> ov.Model:
    """Save the model with fp16 weights, read it back, and return it independent of any file."""
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})
    with tempfile.TemporaryDirectory(prefix="hsdag-zoo-") as folder:
        path = Path(folder) / "model.xml"
        ov.save_model(model, path, compress_to_fp16=True)
        return core.read_model(path)


EXPANSION = 4  # output channels of a block per inner channel (He et al. 2016, Fig. 5)
# With fresh random weights the branch of a block adds as much variance as its input has, and sixteen blocks in
# sequence would multiply activations by hundreds. Scaling the branch down in its last norm keeps them near one.
BRANCH_SCALE = 0.3


class BranchNorm(nn.BatchNorm2d):
    """Last norm of a residual branch, whose random scales are multiplied by BRANCH_SCALE."""


class Bottleneck(nn.Module):
    """Residual block: 1 x 1 reduction, 3 x 3 with the stride, 1 x 1 expansion, and the input added back."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = EXPANSION * width
        self.branch = nn.Sequential(
            nn.Conv2d(in_channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, out_channels, 1, bias=False),
            BranchNorm(out_channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, C, H, W] to [B, 4 * width, H / stride, W / stride]."""
        return torch.relu(self.branch(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Bottleneck ResNet of He et al. 2016, Table 1, with the stride in the 3 x 3 convolution."""

    def __init__(self, sizes: ResNetSizes) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, sizes.stem, 7, 2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(sizes.stem)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.stages = nn.Sequential()
        channels = sizes.stem
        for stage_idx, (width, depth) in enumerate(zip(sizes.widths, sizes.depths, strict=True)):
            stage = nn.Sequential()
            for block_idx in range(depth):
                stage.append(Bottleneck(channels, width, stride=2 if stage_idx and not block_idx else 1))
                channels = EXPANSION * width
            self.stages.append(stage)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, sizes.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images [B, 3, H, W] to logits [B, K]."""
        x = self.pool(torch.relu(self.norm(self.conv(images))))
        logits: torch.Tensor = self.classifier(torch.flatten(self.mean(self.stages(x)), 1))
        return logits


# Inception expects pixels scaled by (x - 0.5) / 0.5, but images arrive scaled by ImageNet's channel means and
# deviations. The input transform converts from the latter to the former.
CHANNEL_MEANS = (0.485, 0.456, 0.406)
CHANNEL_DEVIATIONS = (0.229, 0.224, 0.225)
# Rounded to half precision, in which the model's file stores them: otherwise OpenVINO would keep the two scalars that
# lose more than 1e-4 of their value in f32, without the Convert that the graph in the paper has.
CHANNEL_SCALES = tuple(float(np.float16(deviation / 0.5)) for deviation in CHANNEL_DEVIATIONS)
CHANNEL_SHIFTS = tuple(float(np.float16((mean - 0.5) / 0.5)) for mean in CHANNEL_MEANS)

STEM = "32:3x3/2! 32:3x3! 64:3x3 max 80:1x1! 192:3x3! max"
MODULE_35 = "64:1x1 | 48:1x1 64:5x5 | 64:1x1 96:3x3 96:3x3 | mean {0}:1x1"  # Szegedy et al. 2016, Fig. 5
REDUCTION_35 = "384:3x3/2! | 64:1x1 96:3x3 96:3x3/2! | max"  # Fig. 10
MODULE_17 = (  # Fig. 6
    "192:1x1 | {0}:1x1 {0}:1x7 192:7x1 | {0}:1x1 {0}:7x1 {0}:1x7 {0}:7x1 192:1x7 | mean 192:1x1"
)
REDUCTION_17 = "192:1x1 320:3x3/2! | 192:1x1 192:1x7 192:7x1 192:3x3/2! | max"
MODULE_8 = "320:1x1 | 384:1x1 384:1x3+3x1 | 448:1x1 384:3x3 384:1x3+3x1 | mean 192:1x1"  # Fig. 7
"""Modules of Inception-v3: branches separated by ``|`` that read the same input, each a sequence of layers.

A layer is ``channels:rowsxcolumns``, a convolution that keeps height and width; ``!`` removes its padding, and ``/2``
gives it a stride of two. Two convolutions of the same input joined by ``+`` are concatenated.
"""


class Branches(nn.Module):
    """Branches that read the same input, their outputs concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, C, H, W] to [B, sum of the branches' channels, H', W']."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _branch(layers: Sequence[str], c: int, divisor: int) -> tuple[nn.Sequential, int]:
    """Return one branch of a module for ``c`` input channels, and its output channels.

    The channel counts in ``layers`` are divided by ``divisor``.
    """
    branch = nn.Sequential()
    for layer in layers:
        if layer in ("mean", "max"):
            branch.append(nn.AvgPool2d(3, 1, padding=1) if layer == "mean" else nn.MaxPool2d(3, 2))
            continue
        width, kernels = layer.split(":")
        joined = [_convolution(c, int(width) // divisor, kernel) for kernel in kernels.split("+")]
        branch.append(Branches(*joined) if len(joined) > 1 else joined[0])
        c = len(joined) * (int(width) // divisor)
    return branch, c


def _convolution(c: int, out_channels: int, kernel: str) -> nn.Sequential:
    """Return a convolution with batch norm and ReLU."""
    size = tuple(int(n) for n in kernel.removesuffix("!").removesuffix("/2").split("x"))
    padding = 0 if "!" in kernel else (size[0] // 2, size[1] // 2)
    conv = nn.Conv2d(c, out_channels, size, 2 if "/2" in kernel else 1, padding, bias=False)  # type: ignore[arg-type]
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels, eps=0.001), nn.ReLU())


class Inception(nn.Module):
    """Inception-v3 of Szegedy et al. 2016, Table 1, with input transform and without auxiliary head."""

    def __init__(self, sizes: InceptionSizes) -> None:
        super().__init__()
        of_35, of_17 = (
            [form.format(n) for n in channels]
            for form, channels in ((MODULE_35, sizes.pool_channels), (MODULE_17, sizes.mid_channels))
        )
        self.features = nn.Sequential()
        c = 3
        for written in (STEM, *of_35, REDUCTION_35, *of_17, REDUCTION_17, *[MODULE_8] * sizes.num_expanded):
            made = (_branch(branch.split(), c, sizes.divisor) for branch in written.split("|"))
            branches, channels = zip(*made, strict=True)
            self.features.append(Branches(*branches) if len(branches) > 1 else branches[0])
            c = sum(channels)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(c, sizes.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images [B, 3, H, W] to logits [B, K]."""
        logits: torch.Tensor = self.classifier(torch.flatten(self.mean(self.features(transform_input(images))), 1))
        return logits


def transform_input(images: torch.Tensor) -> torch.Tensor:
    """Rescale images [B, 3, H, W] from ImageNet's statistics to [-1, 1]."""
    channels = [
        images[:, channel].unsqueeze(1) * scale + shift
        for channel, (scale, shift) in enumerate(zip(CHANNEL_SCALES, CHANNEL_SHIFTS, strict=True))
    ]
    return torch.cat(channels, dim=1)


BERT_EPS = 1e-12


class BertAttention(nn.Module):
    """Scaled dot-product attention over A heads, and the projection of their joint output."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.split_shape = (sizes.heads, sizes.hidden // sizes.heads)
        self.scale = math.sqrt(sizes.hidden // sizes.heads)
        self.query, self.key, self.value, self.output = (nn.Linear(sizes.hidden, sizes.hidden) for _ in range(4))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Map tokens [B, T, D], with ``bias`` [B, 1, 1, T] added to the scores, to [B, T, D]."""
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        context = torch.softmax(query @ key.transpose(-1, -2) / self.scale + bias, dim=-1) @ value
        projected: torch.Tensor = self.output(context.permute(0, 2, 1, 3).reshape(x.shape))
        return projected

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Split [B, T, D] into heads [B, A, T, D / A]."""
        return x.view(*x.shape[:2], *self.split_shape).permute(0, 2, 1, 3)


class BertLayer(nn.Module):
    """Self-attention and feed-forward part, each added to its input and normalised."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.attention = BertAttention(sizes)
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=BERT_EPS)
        self.intermediate = nn.Linear(sizes.hidden, sizes.intermediate)
        self.output = nn.Linear(sizes.intermediate, sizes.hidden)
        self.output_norm = nn.LayerNorm(sizes.hidden, eps=BERT_EPS)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Map tokens [B, T, D], with ``bias`` [B, 1, 1, T] added to the scores, to [B, T, D]."""
        x = self.attention_norm(self.attention(x, bias) + x)
        normalised: torch.Tensor = self.output_norm(self.output(functional.gelu(self.intermediate(x))) + x)
        return normalised


class Bert(nn.Module):
    """BERT encoder with pooler (Devlin et al. 2019, section 3)."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.token_types = nn.Embedding(sizes.token_types, sizes.hidden)
        self.positions = nn.Embedding(sizes.positions, sizes.hidden)
        self.norm = nn.LayerNorm(sizes.hidden, eps=BERT_EPS)
        self.layers = nn.ModuleList(BertLayer(sizes) for _ in range(sizes.layers))
        self.pooler = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Map inputs [B, T] to the last hidden state [B, T, D] and pooler output [B, D]; mask 0 hides a token."""
        bias = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        positions = self.positions(torch.arange(input_ids.shape[1]).unsqueeze(0))
        x = self.norm(self.words(input_ids) + self.token_types(token_type_ids) + positions)
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))
