"""FFNN: softmax(ReLU(X W1 + b1) W2 + b2), sharded over devices (DOPPLER, App. D.2)."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.models.sharding import Sharded, Sharder
from hsdag.models.workload import Workload


@dataclass(frozen=True)
class FeedForwardSizes:
    """X is [batch, width], W1 [width, hidden], W2 [hidden, width]."""

    batch: int = 2**15
    width: int = 2**5
    hidden: int = 2**16
    element_type: str = "f32"


def ffnn(num_devices: int, sizes: FeedForwardSizes = FeedForwardSizes()) -> Workload:
    """The network on k devices: rows in k parts, the hidden axis in min(4, k); the softmax in 4k row parts.

    For k >= 4 there are 46k + 13 nodes (197 for four devices). The biases are added by the formations of the
    two products. Raises OptionError where an axis cannot be cut.
    """
    k, cut, kind = num_devices, min(4, num_devices), sizes.element_type
    sharder = Sharder("ffnn", k)
    x = sharder.input("X", (sizes.batch, sizes.width), (k, 1), kind)
    w1 = sharder.input("W1", (sizes.width, sizes.hidden), (1, cut), kind)
    b1 = sharder.input("b1", (sizes.hidden,), (cut,), kind)
    w2 = sharder.input("W2", (sizes.hidden, sizes.width), (cut, 1), kind)
    b2 = sharder.input("b2", (sizes.width,), (1,), kind)
    linear = sharder.einsum("XW1", "ij,jk->ik", {"i": k, "k": cut}, x, w1, b1)
    hidden = sharder.elementwise("relu", "relu", [linear])
    scores = sharder.einsum("HW2", "ij,jk->ik", {"i": k, "j": cut}, hidden, w2, b2)
    return sharder.build({"Y": softmax(sharder, "softmax", scores, (4 * k, 1))})


def softmax(sharder: Sharder, name: str, x: Sharded, parts: tuple[int, ...]) -> Sharded:
    """The softmax of ``x`` along its last axis, every step of it cut into ``parts``."""
    peak = sharder.reduce(f"{name}.max", "max", x, parts)
    shifted = sharder.elementwise(f"{name}.sub", "sub", [x, peak], parts)
    raised = sharder.elementwise(f"{name}.exp", "exp", [shifted])
    total = sharder.reduce(f"{name}.sum", "sum", raised, parts)
    return sharder.elementwise(f"{name}.div", "div", [raised, total])
