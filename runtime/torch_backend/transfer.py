"""Transfer: how a result gets from one logical device to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from hsdag.runtime.torch_backend.device import LogicalDevice
from hsdag.runtime.torch_backend.graph import Tensor, TensorFunction
from hsdag.runtime.torch_backend.streams import new_event


class Route(Enum):
    """The ways between two devices."""

    SHARED = "nothing is moved; both read the same memory"
    HOST = "a copy within the memory of the CPU"
    DEVICE = "a copy within the memory of one GPU"
    PEER = "a copy from GPU to GPU"
    STAGED = "a copy from GPU to GPU through pinned memory of the CPU"
    MIXED = "a copy between CPU and GPU"


@dataclass(frozen=True, eq=False)
class Transfer:
    """A way from a source to a destination, and the function that goes it; results beyond the first are only kept."""

    source: LogicalDevice
    destination: LogicalDevice
    route: Route
    run: TensorFunction


def transfer_between(source: LogicalDevice, destination: LogicalDevice, share: bool) -> Transfer:
    """The best way; ``share`` where devices on one physical device may read each other's memory."""
    route = _route(source, destination, share)
    here, there = source.physical, destination.physical

    def sent(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = xs
        return (torch.empty(x.shape, dtype=x.dtype, device=there).copy_(x, non_blocking=True),)

    def staged(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = xs
        pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        pinned.copy_(x, non_blocking=True)
        out = new_event()
        out.record(torch.cuda.current_stream(here))
        torch.cuda.current_stream(there).wait_event(out)
        return torch.empty(x.shape, dtype=x.dtype, device=there).copy_(pinned, non_blocking=True), pinned

    functions: dict[Route, TensorFunction] = {
        Route.SHARED: lambda xs: (xs[0],),
        Route.HOST: lambda xs: (xs[0].clone(memory_format=torch.contiguous_format),),
        Route.DEVICE: lambda xs: (xs[0].clone(memory_format=torch.contiguous_format),),
        Route.PEER: sent,
        Route.STAGED: staged,
        Route.MIXED: lambda xs: (xs[0].to(there),),
    }
    return Transfer(source, destination, route, functions[route])


def _route(source: LogicalDevice, destination: LogicalDevice, share: bool) -> Route:
    if source.physical == destination.physical:
        if share:
            return Route.SHARED
        return Route.DEVICE if source.is_cuda else Route.HOST
    if source.is_cuda != destination.is_cuda:
        return Route.MIXED
    peers = torch.cuda.can_device_access_peer(destination.physical, source.physical)
    return Route.PEER if peers else Route.STAGED
