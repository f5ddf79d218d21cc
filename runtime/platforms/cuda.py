"""CUDA devices, as torch sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CudaInfo:
    """A CUDA device: its torch name, its full name, and its memory."""

    name: str
    full_name: str
    memory_bytes: int


def list_cuda() -> tuple[CudaInfo, ...]:
    """CUDA devices torch can use here; none where torch was built without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = []
    for idx in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(idx)
        found.append(CudaInfo(f"cuda:{idx}", str(properties.name), int(properties.total_memory)))
    return tuple(found)
