"""The one place that says whether CUDA may round f32 operands to TF32."""

from __future__ import annotations

import torch


def allow_tf32(allowed: bool) -> None:
    """Let matrix products and convolutions on CUDA round f32 operands to ten bits of mantissa, or not.

    Torch has it off for products and on for convolutions. Results agree with OpenVINO's f32 to 1e-4 only
    with it off; speed is measured with either. It holds for the whole process, from then on; a captured graph
    keeps what held when it was captured.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
