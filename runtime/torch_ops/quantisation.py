"""FakeQuantize: rounding to a number of levels between limits."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import Builder, Tensor, TorchOp, attribute, choice, require_float


def _fake_quantize(node: ov.Node) -> TorchOp:
    """Data, the limits of the input and those of the output, which broadcast to the data.

    The input's limits may be equal, which leaves the output's limits alone, or come in reverse.
    """
    require_float(node)
    choice(node, "auto_broadcast", ("numpy", "none"))
    steps = int(attribute(node, "levels")) - 1

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x, in_low, in_high, out_low, out_high = xs
        low, high = torch.minimum(in_low, in_high), torch.maximum(in_low, in_high)
        level = torch.round((x - in_low) / (in_high - in_low) * steps)
        inner = level / steps * (out_high - out_low) + out_low
        return (torch.where(x <= low, out_low, torch.where(x > high, out_high, inner)),)

    return run


BUILDERS: dict[str, Builder] = {"FakeQuantize": _fake_quantize}
