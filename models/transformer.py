"""A stack of transformer blocks of any size, sharded over devices as a grid of heads and tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.models.ffnn import softmax
from hsdag.models.sharding import Sharded, Sharder
from hsdag.models.workload import Workload

EPSILON = 1e-5
MOST_TILES = 9
"""Layers times devices that ``TransformerSizes.drawn`` stays within, where one layer does: up to 400 nodes."""


@dataclass(frozen=True)
class TransformerSizes:
    """Blocks of attention and a feed-forward part, each behind an RMS norm and added to its input, in f32.

    The heads, and the hidden axis of the feed-forward part, are cut into ``head_groups``, the tokens of products and
    of attention into as many parts as there are devices for each head group, those of norms and residual sums into
    ``row_parts``.
    """

    layers: int = 2
    tokens: int = 1024
    heads: int = 8
    head_size: int = 64
    hidden: int = 2048
    head_groups: int = 2
    row_parts: int = 2

    @property
    def width(self) -> int:
        """Elements of a token."""
        return self.heads * self.head_size

    @staticmethod
    def drawn(seed: int, num_devices: int) -> TransformerSizes:
        """Sizes that k devices divide: 32 to 512 tokens and up to 4 heads a device, 32 to 128 elements a head."""
        rng, k = np.random.default_rng(seed), num_devices
        groups = int(rng.choice([h for h in range(1, k + 1) if k % h == 0]))
        heads, head_size = groups * int(rng.integers(1, 4 * k // groups + 1)), int(rng.choice((32, 64, 128)))
        return TransformerSizes(
            layers=int(rng.integers(1, max(MOST_TILES // k, 1) + 1)),
            tokens=k * 2 ** int(rng.integers(5, 10)),
            heads=heads,
            head_size=head_size,
            hidden=heads * head_size * int(rng.integers(2, 5)),
            head_groups=groups,
            row_parts=int(rng.choice((k // groups, k))),
        )


def transformer(num_devices: int, sizes: TransformerSizes) -> Workload:
    """The stack on k devices, from the tokens ``x`` to ``y``, both [tokens, width].

    A block with r row parts, h head groups and s = k / h token parts has 14 r + 22 k + 2 s + 6 h nodes. Gains of norms
    and the scale of scores belong to the weights behind them. Raises OptionError where an axis cannot be cut.
    """
    if num_devices % sizes.head_groups:
        raise OptionError(f"{sizes.head_groups} head groups do not divide {num_devices} devices")
    stack = _Stack(Sharder("transformer", num_devices), sizes, num_devices // sizes.head_groups)
    x = stack.sharder.input("x", (sizes.tokens, sizes.width), (sizes.row_parts, 1))
    for layer in range(sizes.layers):
        x = stack.add(f"{layer}.residual1", x, stack.attention(f"{layer}", stack.norm(f"{layer}.norm1", x)))
        x = stack.add(f"{layer}.residual2", x, stack.feed_forward(f"{layer}", stack.norm(f"{layer}.norm2", x)))
    return stack.sharder.build({"y": x})


@dataclass(frozen=True)
class _Stack:
    sharder: Sharder
    sizes: TransformerSizes
    token_parts: int

    def norm(self, name: str, x: Sharded) -> Sharded:
        """x / sqrt(mean(x^2) + epsilon)."""
        sh, factor = self.sharder, 1 / self.sizes.width
        total = sh.reduce(f"{name}.sum", "sum", sh.elementwise(f"{name}.square", "square", [x]), x.parts)
        mean = sh.elementwise(f"{name}.mean", f"affine:factor={factor!r},offset={EPSILON!r}", [total])
        return sh.elementwise(f"{name}.scale", "mul", [x, sh.elementwise(f"{name}.rsqrt", "rsqrt", [mean])])

    def add(self, name: str, x: Sharded, branch: Sharded) -> Sharded:
        """The residual sum."""
        return self.sharder.elementwise(name, "add", [x, branch])

    def attention(self, name: str, x: Sharded) -> Sharded:
        """Attention of every token to all, [tokens, width], in tiles of tokens."""
        sh, h, s = self.sharder, self.sizes.head_groups, self.token_parts
        split = (self.sizes.width, self.sizes.heads, self.sizes.head_size)
        query, key, value = (
            sh.einsum(f"{name}.{part}", "te,ehd->htd", {"t": s, "h": h}, x,
                      sh.input(f"{name}.{part}.weight", split, (1, h, 1)))
            for part in "QKV"
        )  # fmt: skip
        scores = sh.einsum(f"{name}.scores", "hqd,htd->hqt", {"h": h, "q": s}, query, key)
        weights = softmax(sh, f"{name}.softmax", scores, (h, s, 1))
        mixed = sh.einsum(f"{name}.mix", "hqt,htd->hqd", {"h": h, "q": s}, weights, value)
        joint = sh.input(f"{name}.O.weight", (*split[1:], split[0]), (h, 1, 1))
        return sh.einsum(f"{name}.O", "htd,hde->te", {"t": s, "h": h}, mixed, joint)

    def feed_forward(self, name: str, x: Sharded) -> Sharded:
        """W2 silu(W1 x), [tokens, width], in tiles of tokens."""
        sh, shape, columns = self.sharder, (self.sizes.width, self.sizes.hidden), self.sizes.head_groups
        cuts = {"t": self.token_parts, "f": columns}
        first = sh.input(f"{name}.W1.weight", shape, (1, columns))
        second = sh.input(f"{name}.W2.weight", shape[::-1], (columns, 1))
        inner = sh.elementwise(f"{name}.silu", "silu", [sh.einsum(f"{name}.W1", "te,ef->tf", cuts, x, first)])
        return sh.einsum(f"{name}.W2", "tf,fe->te", cuts, inner, second)
