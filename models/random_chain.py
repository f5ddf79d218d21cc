"""Chains and trees of matrix products and elementwise ops, drawn from a seed and sharded over devices.

They generalise ChainMM (hsdag.models.chainmm): the formula is a random binary tree over matrices that fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.models.expression import Expression, Shape
from hsdag.models.sharding import Node, Sharded, Sharder
from hsdag.models.workload import Workload

GRAIN = 24
"""Every axis is a multiple of it, so that all of CUTS divide it."""

CUTS = (1, 2, 3, 4, 6, 8)
"""Numbers of parts that an axis is cut into."""

PRODUCT_SHARE, ACTIVATED_SHARE = 0.7, 0.25
"""How often two operands are multiplied as matrices, else joined by element, and a result has an activation."""

JOINS, ACTIVATIONS = ("add", "mul", "maximum"), ("relu", "silu")
MOST_MATRICES = 20
"""Of what ``RandomChain.drawn`` draws."""


@dataclass(frozen=True)
class RandomChain:
    """What to draw: a formula over ``matrices`` matrices whose axes have ``least`` to ``most`` times GRAIN elements.

    Raises OptionError for a number of matrices or a range that is empty.
    """

    matrices: int = 6
    least: int = 20
    most: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        if self.matrices < 2 or not 1 <= self.least <= self.most:
            raise OptionError(f"a chain needs 2 matrices and a range of sizes, not {self}")

    @staticmethod
    def drawn(seed: int) -> RandomChain:
        """4 to MOST_MATRICES matrices, small ones (24 to 2,400 rows) or large ones (480 to 9,600)."""
        rng = np.random.default_rng(seed)
        least, most = ((1, 100), (20, 400))[int(rng.integers(2))]
        return RandomChain(int(rng.integers(4, MOST_MATRICES + 1)), least, most, seed)

    def formula(self) -> tuple[Expression, tuple[Shape, ...]]:
        """The formula, whose number i stands for matrix ``Mi``, and the shapes of the matrices."""
        growing = _Growing(self, np.random.default_rng([self.seed, 0]), [])
        grown = growing.tree(growing.size(), growing.size(), self.matrices)
        assert isinstance(grown, Expression)
        return grown, tuple(growing.shapes)


@dataclass(frozen=True)
class _Growing:
    """Draws the formula from its root down."""

    drawn: RandomChain
    rng: np.random.Generator
    shapes: list[Shape]

    def size(self) -> int:
        """Elements of an axis, log-uniform."""
        low, high = np.log(self.drawn.least), np.log(self.drawn.most)
        return GRAIN * round(float(np.exp(self.rng.uniform(low, high))))

    def tree(self, rows: int, columns: int, matrices: int) -> Node:
        """A formula over so many matrices whose result is [rows, columns]."""
        if matrices == 1:
            self.shapes.append((rows, columns))
            return len(self.shapes) - 1
        left = int(self.rng.integers(1, matrices))
        if self.rng.random() < PRODUCT_SHARE:
            inner = self.size()
            pair = self.tree(rows, inner, left), self.tree(inner, columns, matrices - left)
            grown = Expression("einsum", "ij,jk->ik", pair)
        else:
            pair = self.tree(rows, columns, left), self.tree(rows, columns, matrices - left)
            grown = Expression(str(self.rng.choice(JOINS)), "", pair)
        if self.rng.random() < ACTIVATED_SHARE:
            grown = Expression(str(self.rng.choice(ACTIVATIONS)), "", (grown,))
        return grown


def random_chain(num_devices: int, drawn: RandomChain) -> Workload:
    """The formula on k devices; its matrices are the inputs ``M0``, ``M1``, ..., its value the output ``result``.

    Every matrix and product draws its own cuts; a product has at most 2k shards, and at most k for a tile.
    """
    formula, shapes = drawn.formula()
    sharding = _Sharding(Sharder(f"chain-{drawn.matrices}-seed{drawn.seed}", num_devices), num_devices,
                         np.random.default_rng([drawn.seed, 1, num_devices]), shapes)  # fmt: skip
    return sharding.sharder.build({"result": sharding.apply(formula, "root")})


@dataclass(frozen=True)
class _Sharding:
    """Adds the ops of a formula."""

    sharder: Sharder
    num_devices: int
    rng: np.random.Generator
    shapes: tuple[Shape, ...]

    def apply(self, node: Node, name: str) -> Sharded:
        """The value of a formula or the matrix of a number; ops of operand i are named ``name.i``."""
        if isinstance(node, int):
            most = (self.num_devices + 1) // 2
            return self.sharder.input(f"M{node}", self.shapes[node], (self._cut(most), self._cut(most)))
        operands = [self.apply(operand, f"{name}.{i}") for i, operand in enumerate(node.operands)]
        if node.name != "einsum":
            return self.sharder.elementwise(name, node.name, operands)
        k = self.num_devices
        rows = self._cut(k)
        columns = self._cut(k // rows)
        inner = self._cut(min(k, 2 * k // (rows * columns)))
        return self.sharder.einsum(name, node.argument, {"i": rows, "j": inner, "k": columns}, *operands)

    def _cut(self, most: int) -> int:
        """Parts of an axis, at most so many."""
        return int(self.rng.choice([cut for cut in CUTS if cut <= most]))
