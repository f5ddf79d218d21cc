"""Sharding: tensors cut into equal tiles, and operations on them that become one op per tile.

Every contraction and reduction is followed by a formation per tile of its result, which adds up the partial
results and exists even for a single one (DOPPLER, App. A.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph import IntArray
from hsdag.models.expression import Expression, Shape, broadcast, format_ranges
from hsdag.models.workload import Workload, WorkloadBuilder

Ranges = tuple[tuple[int, int], ...]
Node = Expression | int


@dataclass(frozen=True, eq=False)
class Sharded:
    """A tensor in equal tiles: ``tiles[i, j, ...]`` is the op that holds tile (i, j, ...)."""

    shape: Shape
    tiles: IntArray

    @property
    def parts(self) -> Shape:
        """Number of tiles along each axis."""
        return self.tiles.shape

    def whole(self) -> Node:
        """The whole tensor, put together."""
        return self.region(tuple((0, size) for size in self.shape))

    def region(self, ranges: Ranges) -> Node:
        """What reads the part ``ranges`` of the tensor: tiles, slices of tiles, and their concatenations."""
        return self._gather(ranges, 0, ())

    def _gather(self, ranges: Ranges, axis: int, index: tuple[int, ...]) -> Node:
        if axis == len(self.shape):
            return self._cut(ranges, index)
        step = self.shape[axis] // self.parts[axis]
        first, last = ranges[axis]
        found = [self._gather(ranges, axis + 1, (*index, i)) for i in range(first // step, -(-last // step))]
        return found[0] if len(found) == 1 else Expression("concat", f"axis={axis}", tuple(found))

    def _cut(self, ranges: Ranges, index: tuple[int, ...]) -> Node:
        steps = [size // parts for size, parts in zip(self.shape, self.parts, strict=True)]
        starts = [i * step for i, step in zip(index, steps, strict=True)]
        inner = [
            (max(first - start, 0), min(last - start, step))
            for (first, last), start, step in zip(ranges, starts, steps, strict=True)
        ]
        op = int(self.tiles[index])
        if inner == [(0, step) for step in steps]:
            return op
        return Expression("slice", format_ranges(inner), (op,))


class Sharder:
    """Builds a workload from sharded tensors.

    ``num_devices`` bounds the shards of one meta-op, as ENUMERATIVEOPTIMIZER needs (DOPPLER, Alg. 4: at most
    one shard per device). An operation with more shards becomes several meta-ops, ``name/0``, ``name/1``, ...,
    each with whole tiles of the result. All methods raise OptionError where an axis cannot be cut equally.
    """

    def __init__(self, name: str, num_devices: int) -> None:
        self._builder = WorkloadBuilder(name)
        self._num_devices = num_devices

    def input(self, name: str, shape: Shape, parts: Shape, element_type: str = "f32") -> Sharded:
        """An input of the workload, held in ``parts`` tiles."""
        tiles = np.empty(parts, dtype=np.int64)
        for index in np.ndindex(parts):
            ranges = _tile(name, shape, parts, index)
            tiles[index] = self._builder.add_input(_op_name(name, index), name, ranges, element_type)
        return Sharded(shape, tiles)

    def constant(self, name: str, operation: str, shape: Shape, parts: Shape) -> Sharded:
        """A tensor made from nothing; ``operation`` is formatted with the first element's index along each axis."""
        tiles = np.empty(parts, dtype=np.int64)
        for wave, index in self._waves(name, parts):
            ranges = _tile(name, shape, parts, index)
            head, _, argument = operation.partition(":")
            text = argument.format(first=[first for first, _ in ranges], size=[b - a for a, b in ranges])
            tiles[index] = self._builder.add_op(_op_name(name, index), Expression(head, text), wave, "shard")
        return Sharded(shape, tiles)

    def elementwise(
        self, name: str, operation: str, operands: Sequence[Sharded], parts: Shape | None = None
    ) -> Sharded:
        """One op per tile of the result; operands broadcast. By default the result is cut like the first operand."""
        shape = broadcast([x.shape for x in operands])
        parts = parts or operands[0].parts
        tiles = np.empty(parts, dtype=np.int64)
        for wave, index in self._waves(name, parts):
            ranges = _tile(name, shape, parts, index)
            read = tuple(x.region(_aligned(x.shape, ranges)) for x in operands)
            tiles[index] = self._add(name, index, operation, read, wave, "shard")
        return Sharded(shape, tiles)

    def each(self, name: str, operation: str, x: Sharded, parts: Shape | None = None) -> Sharded:
        """One op per tile of ``x``, cut into ``parts``, whose result may have another shape than the tile."""
        parts = parts or x.parts
        ops = []
        for wave, index in self._waves(name, parts):
            read = x.region(_tile(name, x.shape, parts, index))
            ops.append(self._add(name, index, operation, (read,), wave, "shard"))
        tile = self._builder.type_of(ops[0]).shape
        parts = parts if len(tile) == len(parts) else (1,) * len(tile)
        return Sharded(tuple(a * b for a, b in zip(tile, parts, strict=True)), np.array(ops).reshape(parts))

    def part(self, name: str, x: Sharded, ranges: Ranges) -> Sharded:
        """One op that holds a part of ``x`` as a tensor of its own."""
        inside = x.region(ranges)
        if isinstance(inside, int):
            inside = Expression("identity", "", (inside,))
        op = self._builder.add_op(name, inside, name, "shard")
        return Sharded(tuple(last - first for first, last in ranges), np.full((1,) * len(ranges), op))

    def einsum(
        self, name: str, spec: str, cuts: Mapping[str, int], left: Sharded, right: Sharded, bias: Sharded | None = None
    ) -> Sharded:
        """A contraction of two tensors, the axis of each letter cut into ``cuts[letter]`` parts (1 if not named).

        ``bias``, if given, is added by the formations.
        """
        terms, kept = spec.split("->")[0].split(","), spec.split("->")[1]
        sizes = {letter: size for term, x in zip(terms, (left, right), strict=True)
                 for letter, size in zip(term, x.shape, strict=True)}  # fmt: skip
        summed = "".join(letter for letter in sizes if letter not in kept)
        shape, parts = tuple(sizes[c] for c in kept), tuple(cuts.get(c, 1) for c in kept)
        inner = [range(cuts.get(c, 1)) for c in summed]

        def shard(index: tuple[int, ...], at: tuple[int, ...]) -> tuple[Node, ...]:
            place = dict(zip(kept + summed, (*index, *at), strict=True))
            return tuple(
                x.region(_tile(name, x.shape, tuple(cuts.get(c, 1) for c in term), tuple(place[c] for c in term)))
                for term, x in zip(terms, (left, right), strict=True)
            )

        extra = (lambda index: (bias.region(_aligned(bias.shape, _tile(name, shape, parts, index))),)) if bias else None
        tiles = np.empty(parts, dtype=np.int64)
        for wave, index in self._waves(name, parts, prod(len(r) for r in inner)):
            ops: list[Node] = [
                self._add(name, (*index, *at), f"einsum:{spec}", shard(index, at), wave, "shard")
                for at in product(*inner)
            ]
            tiles[index] = self._form(name, index, "add", (*ops, *(extra(index) if extra else ())), wave)
        return Sharded(shape, tiles)

    def reduce(self, name: str, operation: str, x: Sharded, parts: Shape) -> Sharded:
        """The sum or max (``operation``) along the last axis, which stays with size 1; ``x`` is cut into ``parts``."""
        shape, cuts = (*x.shape[:-1], 1), (*parts[:-1], 1)
        join = {"sum": "add", "max": "maximum"}[operation]
        tiles = np.empty(cuts, dtype=np.int64)
        for wave, index in self._waves(name, cuts, parts[-1]):
            ops: list[Node] = []
            for last in range(parts[-1]):
                at = (*index[:-1], last)
                read = x.region(_tile(name, x.shape, parts, at))
                ops.append(self._add(name, at, f"{operation}:axis={len(shape) - 1}", (read,), wave, "shard"))
            tiles[index] = self._form(name, index, join, tuple(ops), wave)
        return Sharded(shape, tiles)

    def build(self, outputs: Mapping[str, Sharded]) -> Workload:
        """The workload, with its results by name."""
        return self._builder.build({name: x.whole() for name, x in outputs.items()})

    def _form(self, name: str, index: tuple[int, ...], join: str, parts: tuple[Node, ...], wave: str) -> int:
        return self._add(f"{name}.form", index, join if len(parts) > 1 else "identity", parts, wave, "reduce")

    def _add(
        self, name: str, index: tuple[int, ...], operation: str, read: tuple[Node, ...], wave: str, role: str
    ) -> int:
        head, _, argument = operation.partition(":")
        return self._builder.add_op(_op_name(name, index), Expression(head, argument, read), wave, role)

    def _waves(self, name: str, parts: Shape, shards_per_tile: int = 1) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The meta-op and the index of each tile of the result."""
        tiles_per_wave = max(1, self._num_devices // shards_per_tile)
        for i, index in enumerate(np.ndindex(parts)):
            yield (name if prod(parts) <= tiles_per_wave else f"{name}/{i // tiles_per_wave}"), index


def _tile(name: str, shape: Shape, parts: Shape, index: tuple[int, ...]) -> Ranges:
    """Ranges of one tile. Raises OptionError where an axis cannot be cut into equal parts."""
    for axis, (size, cut) in enumerate(zip(shape, parts, strict=True)):
        if size % cut:
            raise OptionError(
                f"axis {axis} of {name} has {size} elements, which cannot be divided into {cut} equal parts; "
                "choose another number of devices"
            )
    steps = [size // cut for size, cut in zip(shape, parts, strict=True)]
    return tuple((i * step, (i + 1) * step) for i, step in zip(index, steps, strict=True))


def _aligned(shape: Shape, ranges: Ranges) -> Ranges:
    """The part of an operand of ``shape`` that broadcasts to ``ranges`` of the result."""
    return tuple((0, 1) if size == 1 else r for size, r in zip(shape, ranges[len(ranges) - len(shape) :], strict=True))


def _op_name(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{','.join(map(str, index))}]"
