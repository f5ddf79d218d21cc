"""Windows: where those of a convolution or a pooling lie along each spatial axis.

Legend: S spatial axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Shape, Tensor, attribute, choice, input_shape, output_shape, unsupported

AUTO_PADS = ("explicit", "notset", "same_upper", "same_lower", "valid")


@dataclass(frozen=True)
class Windows:
    """Every tuple is [S]; ``end`` pads just as far as the last window reaches, and is negative where that is short."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    begin: Shape
    end: Shape

    @property
    def are_even(self) -> bool:
        """Whether torch's own padding, the same on both sides, gives these windows."""
        return all(e <= b and b - e < stride for b, e, stride in zip(self.begin, self.end, self.strides, strict=True))

    @property
    def torch_pads(self) -> list[int]:
        """The argument of ``torch.nn.functional.pad``: last axis first."""
        return [side for pair in zip(self.begin[::-1], self.end[::-1], strict=True) for side in pair]

    def padded(self, x: Tensor, value: float = 0.0) -> Tensor:
        """The tensor with ``value`` around it, or cut where windows end before it does."""
        return functional.pad(x, self.torch_pads, value=value) if any((*self.begin, *self.end)) else x


def windows_of(node: ov.Node, kernel: Shape) -> Windows:
    """The windows of an op with strides, pads and perhaps dilations. Raises UnsupportedOpError above three axes."""
    if not 1 <= len(kernel) <= 3:
        raise unsupported(node, f"{len(kernel)} spatial axes", "one to three")
    choice(node, "auto_pad", AUTO_PADS)
    strides = tuple(attribute(node, "strides"))
    dilations = tuple(node.get_attributes().get("dilations", (1,) * len(kernel)))
    begin = tuple(attribute(node, "pads_begin"))  # OpenVINO has put in what auto_pad asks for
    sizes = zip(input_shape(node)[2:], output_shape(node)[2:], kernel, strides, dilations, begin, strict=True)
    end = tuple((out - 1) * stride + (k - 1) * step + 1 - size - pad for size, out, k, stride, step, pad in sizes)
    return Windows(kernel, strides, dilations, begin, end)
