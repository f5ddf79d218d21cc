"""Convolution, GroupConvolution and their transposed forms.

Legend: N batch, C channels in, O channels out, G groups, S spatial axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import openvino as ov
from torch.nn import functional

from hsdag.runtime.torch_ops.base import (
    Builder,
    Shape,
    Tensor,
    TorchOp,
    attribute,
    choice,
    input_shape,
    of_floats,
    output_shape,
    unsupported,
)
from hsdag.runtime.torch_ops.windows import AUTO_PADS, windows_of

CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
TRANSPOSED: tuple[Callable[..., Tensor], ...] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


def _convolution(node: ov.Node) -> TorchOp:
    """Data [N, C, S...] and weights [O, C, S...], or [G, O / G, C / G, S...] of a GroupConvolution."""
    groups, weight_shape = _groups(node)
    windows = windows_of(node, weight_shape[2:])
    convolve = CONVOLUTIONS[len(windows.kernel) - 1]
    even = windows.are_even
    padding = windows.begin if even else 0

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = xs[0] if even else windows.padded(xs[0])
        weight = xs[1].reshape(weight_shape)
        result = convolve(x, weight, stride=windows.strides, padding=padding, dilation=windows.dilations, groups=groups)
        return (result,)

    return run


def _transposed(node: ov.Node) -> TorchOp:
    """Data [N, C, S...] and weights [C, O, S...], or [G, C / G, O / G, S...]: the whole result, cut to its pads."""
    choice(node, "auto_pad", AUTO_PADS)
    shape, result = input_shape(node, 1), output_shape(node)
    groups = shape[0] if node.get_type_name().startswith("Group") else 1
    weight_shape = (shape[0] * shape[1], *shape[2:]) if node.get_type_name().startswith("Group") else shape
    strides, dilations = tuple(attribute(node, "strides")), tuple(attribute(node, "dilations"))
    if not 1 <= len(strides) <= 3:
        raise unsupported(node, f"{len(strides)} spatial axes", "one to three")
    convolve = TRANSPOSED[len(strides) - 1]
    sizes = zip(input_shape(node)[2:], weight_shape[2:], strides, dilations, strict=True)
    whole = [(size - 1) * stride + (k - 1) * step + 1 for size, k, stride, step in sizes]
    begin = [int(pad) for pad in attribute(node, "pads_begin")]
    sides = [(-pad, pad + kept - size) for pad, kept, size in zip(begin, result[2:], whole, strict=True)]
    pads = [side for pair in sides[::-1] for side in pair]

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = convolve(xs[0], xs[1].reshape(weight_shape), stride=strides, dilation=dilations, groups=groups)
        return (functional.pad(x, pads) if any(pads) else x,)

    return run


def _groups(node: ov.Node) -> tuple[int, Shape]:
    """How many groups, and the weights' shape as torch has it."""
    shape = input_shape(node, 1)
    if node.get_type_name() == "GroupConvolution":
        return shape[0], (shape[0] * shape[1], *shape[2:])
    return 1, shape


BUILDERS: dict[str, Builder] = {
    "Convolution": of_floats(_convolution),
    "GroupConvolution": of_floats(_convolution),
    "ConvolutionBackpropData": of_floats(_transposed),
    "GroupConvolutionBackpropData": of_floats(_transposed),
}
