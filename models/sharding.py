"""Shard tensors into equal tiles, and operations on them into one op per tile.

Every contraction and reduction is followed by one formation per tile of its result, which adds up the partial results
and exists even for a single one (DOPPLER, App. A.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.models.expression import Expression, Shape, format_ranges
from hsdag.models.workload import Workload, WorkloadBuilder

Ranges = tuple[tuple[int, int], ...]
Index = tuple[int, ...]
Node = Expression | int


@dataclass(frozen=True, eq=False)
class Sharded:
    """A tensor in equal tiles: ``tiles[i, j, ...]`` is the op that holds tile (i, j, ...)."""

    shape: Shape
    tiles: IntArray

    @property
    def parts(self) -> Shape:
        """Return the number of tiles along each axis."""
        return self.tiles.shape

    def whole(self) -> Node:
        """Return an expression for the whole tensor, put together from its tiles."""
        return self.region(tuple((0, size) for size in self.shape))

    def region(self, ranges: Ranges) -> Node:
        """Return an expression for the part ``ranges``: tiles, slices of tiles, and their concatenations."""
        return self._gather(ranges, (), ())

    def aligned(self, ranges: Ranges) -> Node:
        """Return an expression for the part that broadcasts to ``ranges`` of a result of the same or higher rank."""
        behind = ranges[len(ranges) - len(self.shape) :]
        return self.region(tuple((0, 1) if size == 1 else r for size, r in zip(self.shape, behind, strict=True)))

    def _gather(self, ranges: Ranges, index: Index, inner: Ranges) -> Node:
        """Return the part ``ranges`` of the tiles whose first indices are ``index``; ``inner`` are their ranges."""
        axis = len(index)
        if axis == len(self.shape):
            op = int(self.tiles[index])
            is_whole = inner == tuple((0, size // cut) for size, cut in zip(self.shape, self.parts, strict=True))
            return op if is_whole else Expression("slice", format_ranges(inner), (op,))
        step = self.shape[axis] // self.parts[axis]
        first, last = ranges[axis]
        pieces = tuple(
            self._gather(ranges, (*index, i), (*inner, (max(first - i * step, 0), min(last - i * step, step))))
            for i in range(first // step, -(-last // step))
        )
        return pieces[0] if len(pieces) == 1 else Expression("concat", f"axis={axis}", pieces)


class Sharder:
    """Builder of a workload from sharded tensors.

    An operation with more shards than ``num_devices`` becomes several meta-ops, ``name/0``, ``name/1``, ..., each with
    whole tiles of the result, because ENUMERATIVEOPTIMIZER needs at most one shard per device in a meta-op (DOPPLER,
    Alg. 4). Names of added ops begin with ``prefix``. All methods raise OptionError where an axis cannot be cut
    equally.
    """

    def __init__(self, name: str, num_devices: int) -> None:
        self._builder = WorkloadBuilder(name)
        self._num_devices = num_devices
        self.prefix = ""

    def input(self, name: str, shape: Shape, parts: Shape, element_type: str = "f32") -> Sharded:
        """Add an input of the workload, held in ``parts`` tiles."""

        def hold(index: Index, ranges: Ranges, _: str) -> int:
            return self._builder.add_input(self._op_name(name, index), self.prefix + name, ranges, element_type)

        return self._tiled(name, shape, parts, hold)

    def constant(self, name: str, operation: str, shape: Shape, parts: Shape) -> Sharded:
        """Add a tensor without operands, cut into ``parts``.

        Args:
            operation: The operation, in which ``{first[i]}`` and ``{size[i]}`` stand for a tile's start and size along
                axis i.
        """

        def make(index: Index, ranges: Ranges, meta_op: str) -> int:
            text = operation.format(first=[first for first, _ in ranges], size=[b - a for a, b in ranges])
            return self._add(name, index, text, (), meta_op)

        return self._tiled(name, shape, parts, make)

    def elementwise(
        self, name: str, operation: str, operands: Sequence[Sharded], parts: Shape | None = None
    ) -> Sharded:
        """Add one op per tile of the result; operands broadcast. ``parts`` default to those of the first operand."""

        def compute(index: Index, ranges: Ranges, meta_op: str) -> int:
            return self._add(name, index, operation, [x.aligned(ranges) for x in operands], meta_op)

        return self._tiled(name, np.broadcast_shapes(*(x.shape for x in operands)), parts or operands[0].parts, compute)

    def each(self, name: str, operation: str, x: Sharded, parts: Shape | None = None) -> Sharded:
        """Add one op per tile of ``x``, cut into ``parts``; its result may have another shape than the tile."""

        def compute(index: Index, ranges: Ranges, meta_op: str) -> int:
            return self._add(name, index, operation, [x.region(ranges)], meta_op)

        ops = self._tiled(name, x.shape, parts or x.parts, compute).tiles
        tile = self._builder.type_of(int(ops.flat[0])).shape
        cut = ops.shape if len(tile) == ops.ndim else (1,) * len(tile)
        return Sharded(tuple(a * b for a, b in zip(tile, cut, strict=True)), ops.reshape(cut))

    def part(self, name: str, x: Sharded, ranges: Ranges) -> Sharded:
        """Add one op that holds the part ``ranges`` of ``x`` as a tensor of its own."""
        inside = x.region(ranges)
        if isinstance(inside, int):
            inside = Expression("identity", "", (inside,))
        op = self._builder.add_op(self.prefix + name, inside, self.prefix + name, "shard")
        return Sharded(tuple(last - first for first, last in ranges), np.full((1,) * len(ranges), op))

    def einsum(
        self, name: str, spec: str, cuts: Mapping[str, int], left: Sharded, right: Sharded, bias: Sharded | None = None
    ) -> Sharded:
        """Add a contraction of two tensors; the axis of each letter is cut into ``cuts[letter]`` parts, by default 1.

        ``bias``, if present, is added where the partial results of a tile are summed.
        """
        read, kept = spec.split("->")
        factors = list(zip(read.split(","), (left, right), strict=True))
        sizes = {letter: size for term, x in factors for letter, size in zip(term, x.shape, strict=True)}
        summed = "".join(letter for letter in sizes if letter not in kept)
        inner = list(np.ndindex(*(cuts.get(c, 1) for c in summed)))

        def compute(index: Index, ranges: Ranges, meta_op: str) -> int:
            ops: list[Node] = []
            for at in inner:
                place = dict(zip(kept + summed, (*index, *at), strict=True))
                tiles = [([cuts.get(c, 1) for c in term], [place[c] for c in term], x) for term, x in factors]
                operands = [x.region(_tile(name, x.shape, parts, tile)) for parts, tile, x in tiles]
                ops.append(self._add(name, (*index, *at), f"einsum:{spec}", operands, meta_op))
            ops += [bias.aligned(ranges)] if bias else []
            return self._form(name, index, "add", ops, meta_op)

        shape, parts = tuple(sizes[c] for c in kept), tuple(cuts.get(c, 1) for c in kept)
        return self._tiled(name, shape, parts, compute, len(inner))

    def reduce(self, name: str, operation: str, x: Sharded, parts: Shape) -> Sharded:
        """Add a sum or max (``operation``) along the last axis, kept with size 1; ``x`` is cut into ``parts``."""
        last_axis = len(x.shape) - 1

        def compute(index: Index, _: Ranges, meta_op: str) -> int:
            ops: list[Node] = []
            for last in range(parts[-1]):
                at = (*index[:-1], last)
                read = x.region(_tile(name, x.shape, parts, at))
                ops.append(self._add(name, at, f"{operation}:axis={last_axis}", [read], meta_op))
            return self._form(name, index, {"sum": "add", "max": "maximum"}[operation], ops, meta_op)

        return self._tiled(name, (*x.shape[:-1], 1), (*parts[:-1], 1), compute, parts[-1])

    def build(self, outputs: Mapping[str, Sharded]) -> Workload:
        """Return the workload with these named results."""
        return self._builder.build({name: x.whole() for name, x in outputs.items()})

    def _tiled(
        self, name: str, shape: Shape, parts: Shape, add: Callable[[Index, Ranges, str], int], shards_per_tile: int = 1
    ) -> Sharded:
        """Return a tensor whose tiles are the ops that ``add`` returns for a tile's index, ranges and meta-op."""
        name = self.prefix + name
        tiles = np.empty(parts, dtype=np.int64)
        tiles_per_wave = max(1, self._num_devices // shards_per_tile)
        for i, index in enumerate(np.ndindex(parts)):
            meta_op = name if prod(parts) <= tiles_per_wave else f"{name}/{i // tiles_per_wave}"
            tiles[index] = add(index, _tile(name, shape, parts, index), meta_op)
        return Sharded(shape, tiles)

    def _form(self, name: str, index: Index, join: str, parts: Sequence[Node], meta_op: str) -> int:
        """Add the formation of a tile, which joins its partial results."""
        return self._add(f"{name}.form", index, join if len(parts) > 1 else "identity", parts, meta_op, "reduce")

    def _op_name(self, name: str, index: Index) -> str:
        return f"{self.prefix}{name}[{','.join(map(str, index))}]"

    def _add(
        self, name: str, index: Index, operation: str, read: Sequence[Node], meta_op: str, role: str = "shard"
    ) -> int:
        head, _, argument = operation.partition(":")
        return self._builder.add_op(self._op_name(name, index), Expression(head, argument, tuple(read)), meta_op, role)


def _tile(name: str, shape: Shape, parts: Sequence[int], index: Sequence[int]) -> Ranges:
    """Return the ranges of one tile. Raises OptionError where an axis cannot be cut into equal parts."""
    for axis, (size, cut) in enumerate(zip(shape, parts, strict=True)):
        if size % cut:
            raise OptionError(
                f"axis {axis} of {name} has {size} elements, which cannot be divided into {cut} equal parts; "
                "choose another number of devices"
            )
    steps = [size // cut for size, cut in zip(shape, parts, strict=True)]
    return tuple((i * step, (i + 1) * step) for i, step in zip(index, steps, strict=True))
