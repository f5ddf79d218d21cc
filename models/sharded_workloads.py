"""Generate workloads sharded over devices: those of DOPPLER (App. D), random matrix chains, and transformers."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from hsdag.models.expression import Expression, Shape
from hsdag.models.sharding import Node, Sharded, Sharder
from hsdag.models.workload import Workload

EPSILON = 1e-5
"""Number that RMS norms add to the mean square."""


def chainmm(num_devices: int, size: int = 10_000) -> Workload:
    """Return (A B) + (C (D E)) for square matrices of ``size`` rows on k devices: 4k products per matrix product.

    There are 26k + 8 ops in all (112 for four devices). D E is cut into 2 x k x 2 (rows, inner, columns), the other two
    products into k x 2 x 2. Raises OptionError if ``size`` is odd or not a multiple of k.
    """
    k = num_devices
    sharder = Sharder("chainmm", k)
    a, b, c, d, e = (
        sharder.input(name, (size, size), parts)
        for name, parts in (("A", (k, 2)), ("B", (2, 2)), ("C", (k, 2)), ("D", (2, k)), ("E", (k, 2)))
    )
    de = sharder.einsum("DE", "ij,jk->ik", {"i": 2, "j": k, "k": 2}, d, e)
    cde = sharder.einsum("CDE", "ij,jk->ik", {"i": k, "j": 2, "k": 2}, c, de)
    ab = sharder.einsum("AB", "ij,jk->ik", {"i": k, "j": 2, "k": 2}, a, b)
    return sharder.build({"result": sharder.elementwise("sum", "add", [ab, cde])})


def ffnn(num_devices: int, batch: int = 2**15, width: int = 2**5, hidden: int = 2**16) -> Workload:
    """Return a feed-forward network on k devices: k row parts, min(4, k) hidden parts, 4k row parts of softmax.

    X is [batch, width], W1 [width, hidden], W2 [hidden, width]. For k >= 4 there are 46k + 13 ops (197 for four
    devices). The biases are added where partial products are summed. Raises OptionError where an axis cannot be cut.
    """
    k = num_devices
    cut = min(4, num_devices)
    sharder = Sharder("ffnn", k)
    x = sharder.input("X", (batch, width), (k, 1))
    w1 = sharder.input("W1", (width, hidden), (1, cut))
    b1 = sharder.input("b1", (hidden,), (cut,))
    w2 = sharder.input("W2", (hidden, width), (cut, 1))
    b2 = sharder.input("b2", (width,), (1,))
    linear = sharder.einsum("XW1", "ij,jk->ik", {"i": k, "k": cut}, x, w1, b1)
    activated = sharder.elementwise("relu", "relu", [linear])
    scores = sharder.einsum("HW2", "ij,jk->ik", {"i": k, "j": cut}, activated, w2, b2)
    return sharder.build({"Y": sharded_softmax(sharder, "softmax", scores, (4 * k, 1))})


def sharded_softmax(sharder: Sharder, name: str, x: Sharded, parts: tuple[int, ...]) -> Sharded:
    """Return the softmax of ``x`` along its last axis, with every step cut into ``parts``."""
    shifted = sharder.elementwise(f"{name}.sub", "sub", [x, sharder.reduce(f"{name}.max", "max", x, parts)], parts)
    raised = sharder.elementwise(f"{name}.exp", "exp", [shifted])
    return sharder.elementwise(f"{name}.div", "div", [raised, sharder.reduce(f"{name}.sum", "sum", raised, parts)])


def rms_norm(sharder: Sharder, name: str, x: Sharded, parts: tuple[int, ...] | None = None) -> Sharded:
    """Return x / sqrt(mean(x^2) + EPSILON) with means over the last axis, cut into ``parts``, by default as ``x``.

    The sums of squares are cut into the tiles of ``x``.
    """
    total = sharder.reduce(f"{name}.sum", "sum", sharder.elementwise(f"{name}.square", "square", [x]), x.parts)
    mean = sharder.elementwise(f"{name}.mean", f"affine:factor={1 / x.shape[-1]!r},offset={EPSILON!r}", [total])
    inverse = sharder.elementwise(f"{name}.rsqrt", "rsqrt", [mean])
    return sharder.elementwise(f"{name}.scale", "mul", [x, inverse], parts)


@dataclass(frozen=True)
class LlamaSizes:
    """Sizes of Llama 7B. Weights and activations are f16; norms, rotation and softmax are computed in f32."""

    tokens: int = 4096
    width: int = 4096
    heads: int = 32
    hidden: int = 11_008
    vocabulary: int = 32_000


def llama_block(num_devices: int, first: LlamaSizes, *others: LlamaSizes) -> Workload:
    """Return transformer blocks in sequence, without a mask, on k devices; one has 215 ops for four devices.

    Keys are cut along the tokens, so a query meets its keys in several partial results. The inputs are the activations
    ``x`` and the complex ``frequencies`` [tokens, head size / 2], which every block reads. Names in the second and
    later blocks begin with the block's number, counted from 0. Raises OptionError where an axis cannot be cut.
    """
    sh = Sharder("llama-block", num_devices)
    parts = _grid(num_devices)
    x = sh.input("x", (first.tokens, first.width), parts, "f16")
    frequencies = sh.input("frequencies", (first.tokens, first.width // first.heads // 2), (parts[0], 1), "c64")
    for number, sizes in enumerate((first, *others)):
        sh.prefix = f"{number}." if number else ""
        x = _feed_forward(sh, sizes, _attention(sh, sizes, x, parts, frequencies, None), (1, num_devices))
    return sh.build({"y": x})


def llama_layer(num_devices: int, sizes: LlamaSizes) -> Workload:
    """Return one layer with causal mask, last norm and the logits of the last token on k devices; 261 ops for four.

    Queries are cut along the tokens, so every softmax is local. The inputs are the embedded tokens ``x`` and
    ``frequencies`` [tokens, head size], cosine and sine in turn. Raises OptionError where an axis cannot be cut.
    """
    sh = Sharder("llama-layer", num_devices)
    parts = _grid(num_devices)
    tokens, width = sizes.tokens, sizes.width
    rows = (parts[0], 1)
    x = sh.input("x", (tokens, width), parts, "f16")
    angles = sh.input("frequencies", (tokens, width // sizes.heads), rows, "f32")
    frequencies = sh.each("frequencies.complex", "complex", angles, (1, 1))
    causal = "causal:rows={size[0]},columns={size[1]},first_row={first[0]}"
    added = _attention(sh, sizes, x, parts, frequencies, sh.constant("mask", causal, (tokens, tokens), rows))
    final = _norm(sh, sizes, "norm3", _feed_forward(sh, sizes, added, parts), rows)
    row = sh.each("last.squeeze", f"reshape:{width}", sh.part("last", final, ((tokens - 1, tokens), (0, width))))
    head = sh.input("head.weight", (width, sizes.vocabulary), (1, num_devices), "f16")
    return sh.build({"logits": sh.einsum("head", "e,ev->v", {"v": num_devices}, row, head), "hidden": final})


def _grid(num_devices: int) -> tuple[int, int]:
    """Return s parts of the tokens and h groups of heads for s * h devices: the most even pair where s divides h.

    That is 1 x 2 for two devices, 2 x 2 for four, and 2 x 4 for eight.
    """
    s = next(s for s in range(isqrt(num_devices), 0, -1) if num_devices % s == 0 and (num_devices // s) % s == 0)
    return s, num_devices // s


def _norm(
    sh: Sharder, sizes: LlamaSizes, name: str, x: Sharded, parts: tuple[int, int], tiles: Shape | None = None
) -> Sharded:
    """Return x / sqrt(mean(x^2) + EPSILON) * gamma, [tokens, width], cut into ``parts``.

    The sums are cut into ``tiles``, by default those of ``x``.
    """
    wide = sh.elementwise(f"{name}.f32", "convert:f32", [x], tiles)
    narrow = sh.elementwise(f"{name}.f16", "convert:f16", [rms_norm(sh, name, wide, parts)])
    gamma = sh.input(f"{name}.gamma", (sizes.width,), parts[1:], "f16")
    return sh.elementwise(f"{name}.gamma_scale", "mul", [narrow, gamma])


def _attention(
    sh: Sharder,
    sizes: LlamaSizes,
    x: Sharded,
    parts: tuple[int, int],
    frequencies: Sharded,
    mask: Sharded | None,
) -> Sharded:
    """Return normed attention added to ``x``, [tokens, width], cut into ``parts`` whatever the tiles of ``x``.

    With a mask the queries are cut along the tokens, without one the keys. Letters of einsums: t tokens, q queries, e
    width, h heads, d head size.
    """
    s, h = parts
    size = sizes.width // sizes.heads
    by_token, by_width = {"t": s, "h": h}, {"e": s, "h": h}
    of_queries, of_keys = (by_token, by_width) if mask else (by_width, by_token)
    scored = {"h": h, "q" if mask else "t": s}
    normed = _norm(sh, sizes, "norm1", x, (s, h), parts)

    def project(name: str, cuts: dict[str, int]) -> Sharded:
        """Return the projection of the normed input into heads, [heads, tokens, head size]."""
        shape, parts = (sizes.width, sizes.heads, size), (cuts.get("e", 1), h, 1)
        return sh.einsum(name, "te,ehd->htd", cuts, normed, sh.input(f"{name}.weight", shape, parts, "f16"))

    def rotated(name: str, cuts: dict[str, int]) -> Sharded:
        """Return heads with rotary positions: pairs, as complex numbers, times the frequencies of their token."""
        wide = sh.elementwise(f"{name}.f32", "convert:f32", [project(name, cuts)])
        turned = sh.elementwise(f"{name}.rotate", "mul", [sh.each(f"{name}.complex", "complex", wide), frequencies])
        return sh.elementwise(f"{name}.f16", "convert:f16", [sh.each(f"{name}.real", "real", turned)])

    query, key, value = rotated("Q", of_queries), rotated("K", of_keys), project("V", of_keys)
    scores = sh.einsum("scores", "hqd,htd->hqt", scored, query, key)
    scores = sh.elementwise("scores.scale", f"affine:factor={size**-0.5!r},offset=0.0", [scores])
    if mask:
        scores = sh.elementwise("scores.mask", "add", [scores, mask])
    wide = sh.elementwise("scores.f32", "convert:f32", [scores])
    shares = sharded_softmax(sh, "softmax", wide, (h, scored.get("q", 1), scored.get("t", 1)))
    mixed = sh.einsum("AV", "hqt,htd->hqd", scored, sh.elementwise("softmax.f16", "convert:f16", [shares]), value)
    joint = sh.input("O.weight", (sizes.heads, size, sizes.width), (h, 1, of_queries.get("e", 1)), "f16")
    return sh.elementwise("residual1", "add", [sh.einsum("O", "htd,hde->te", of_queries, mixed, joint), x])


def _feed_forward(sh: Sharder, sizes: LlamaSizes, x: Sharded, parts: tuple[int, int]) -> Sharded:
    """Return W2 (silu(W1 y) * W3 y) for the normed y, plus ``x``; ``parts`` cut the tokens and the hidden axis."""
    rows, columns = parts
    shape = (sizes.width, sizes.hidden)
    cuts = {"t": rows, "f": columns}
    normed = _norm(sh, sizes, "norm2", x, (rows, 1))
    gate, up = (
        sh.einsum(name, "te,ef->tf", cuts, normed, sh.input(f"{name}.weight", shape, (1, columns), "f16"))
        for name in ("W1", "W3")
    )
    gated = sh.elementwise("gate", "mul", [sh.elementwise("silu", "silu", [gate]), up])
    down = sh.einsum("W2", "tf,fe->te", cuts, gated, sh.input("W2.weight", shape[::-1], (columns, 1), "f16"))
    return sh.elementwise("residual2", "add", [down, x])


GRAIN = 24
"""Every axis is a multiple of this, so that all of CUTS divide it."""

CUTS = (1, 2, 3, 4, 6, 8)
"""Numbers of parts that an axis may be cut into."""

PRODUCT_SHARE, ACTIVATED_SHARE = 0.7, 0.25
"""How often two operands are joined by a matrix product, not by element, and how often a result has an activation."""

JOINS, ACTIVATIONS = ("add", "mul", "maximum"), ("relu", "silu")


@dataclass(frozen=True)
class RandomChain:
    """Sizes of a random formula over ``matrices`` matrices with axes of ``least`` to ``most`` times GRAIN elements."""

    matrices: int = 6
    least: int = 20
    most: int = 300
    seed: int = 0

    @staticmethod
    def drawn(seed: int) -> RandomChain:
        """Draw 4 to 20 matrices, all small (24 to 2,400 rows) or all large (480 to 9,600 rows)."""
        rng = np.random.default_rng(seed)
        least, most = ((1, 100), (20, 400))[int(rng.integers(2))]
        return RandomChain(int(rng.integers(4, 21)), least, most, seed)

    def formula(self) -> tuple[Expression, tuple[Shape, ...]]:
        """Draw the formula, in which number i stands for matrix ``Mi``; return it with the matrices' shapes."""
        rng = np.random.default_rng([self.seed, 0])
        shapes = list[Shape]()

        def size() -> int:
            """Draw the size of an axis in elements, log-uniformly."""
            return GRAIN * round(float(np.exp(rng.uniform(np.log(self.least), np.log(self.most)))))

        def tree(rows: int, columns: int, matrices: int) -> Node:
            """Draw a formula over ``matrices`` matrices whose result is [rows, columns]."""
            if matrices == 1:
                shapes.append((rows, columns))
                return len(shapes) - 1
            left = int(rng.integers(1, matrices))
            if rng.random() < PRODUCT_SHARE:
                inner = size()
                pair = tree(rows, inner, left), tree(inner, columns, matrices - left)
                grown = Expression("einsum", "ij,jk->ik", pair)
            else:
                pair = tree(rows, columns, left), tree(rows, columns, matrices - left)
                grown = Expression(str(rng.choice(JOINS)), "", pair)
            if rng.random() < ACTIVATED_SHARE:
                grown = Expression(str(rng.choice(ACTIVATIONS)), "", (grown,))
            return grown

        root = tree(size(), size(), self.matrices)
        assert isinstance(root, Expression)
        return root, tuple(shapes)


def random_chain(num_devices: int, drawn: RandomChain) -> Workload:
    """Return the formula on k devices; inputs are its matrices ``M0``, ``M1``, ..., and the output is ``result``.

    Every matrix and product draws its own cuts; a product has at most 2k shards, and at most k per tile.
    """
    k = num_devices
    formula, shapes = drawn.formula()
    sharder = Sharder(f"chain-{drawn.matrices}-seed{drawn.seed}", k)
    rng = np.random.default_rng([drawn.seed, 1, k])

    def cut(most: int) -> int:
        """Draw the number of parts of an axis, at most ``most``."""
        return int(rng.choice([parts for parts in CUTS if parts <= most]))

    def apply(node: Node, name: str) -> Sharded:
        """Return the value of a formula, or the matrix with this number; ops of operand i are named ``name.i``."""
        if isinstance(node, int):
            most = (k + 1) // 2
            return sharder.input(f"M{node}", shapes[node], (cut(most), cut(most)))
        operands = [apply(operand, f"{name}.{i}") for i, operand in enumerate(node.operands)]
        if node.name != "einsum":
            return sharder.elementwise(name, node.name, operands)
        rows = cut(k)
        columns = cut(k // rows)
        inner = cut(min(k, 2 * k // (rows * columns)))
        return sharder.einsum(name, node.argument, {"i": rows, "j": inner, "k": columns}, *operands)

    return sharder.build({"result": apply(formula, "root")})


MOST_TILES = 9
"""Upper limit on layers times devices in ``TransformerSizes.drawn``, if one layer allows it; gives up to 400 ops."""


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of a stack of transformer blocks in f32, each of pre-norm attention and feed-forward with residuals.

    The heads and the hidden axis of the feed-forward part are cut into ``head_groups``; the tokens of products and of
    attention into num_devices / head_groups parts; those of norms and residual sums into ``row_parts``.
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
        """Return the number of elements of a token."""
        return self.heads * self.head_size

    @staticmethod
    def drawn(seed: int, num_devices: int) -> TransformerSizes:
        """Draw sizes that k devices divide: 32 to 512 tokens and up to 4 heads a device, 32 to 128 elements a head."""
        rng = np.random.default_rng(seed)
        k = num_devices
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
    """Return the stack on k devices, from the tokens ``x`` to ``y``, both [tokens, width].

    A block with r row parts, h head groups and s = k / h token parts has 14 r + 22 k + 2 s + 6 h ops. The gains of
    norms and the scale of scores are taken to be part of the weights that follow. Raises OptionError where an axis
    cannot be cut.
    """
    sh = Sharder("transformer", num_devices)
    h, width = sizes.head_groups, sizes.width
    s = num_devices // h
    by_head, wide = (width, sizes.heads, sizes.head_size), (width, sizes.hidden)
    x = sh.input("x", (sizes.tokens, width), (sizes.row_parts, 1))
    for n in range(sizes.layers):
        normed = rms_norm(sh, f"{n}.norm1", x)
        query, key, value = (
            sh.einsum(f"{n}.{part}", "te,ehd->htd", {"t": s, "h": h}, normed,
                      sh.input(f"{n}.{part}.weight", by_head, (1, h, 1)))
            for part in "QKV"
        )  # fmt: skip
        scores = sh.einsum(f"{n}.scores", "hqd,htd->hqt", {"h": h, "q": s}, query, key)
        weights = sharded_softmax(sh, f"{n}.softmax", scores, (h, s, 1))
        mixed = sh.einsum(f"{n}.mix", "hqt,htd->hqd", {"h": h, "q": s}, weights, value)
        joint = sh.input(f"{n}.O.weight", (*by_head[1:], width), (h, 1, 1))
        joined = sh.einsum(f"{n}.O", "htd,hde->te", {"t": s, "h": h}, mixed, joint)
        x = sh.elementwise(f"{n}.residual1", "add", [x, joined])
        normed = rms_norm(sh, f"{n}.norm2", x)
        first = sh.input(f"{n}.W1.weight", wide, (1, h))
        second = sh.input(f"{n}.W2.weight", wide[::-1], (h, 1))
        inner = sh.einsum(f"{n}.W1", "te,ef->tf", {"t": s, "f": h}, normed, first)
        inner = sh.elementwise(f"{n}.silu", "silu", [inner])
        added = sh.einsum(f"{n}.W2", "tf,fe->te", {"t": s, "f": h}, inner, second)
        x = sh.elementwise(f"{n}.residual2", "add", [x, added])
    return sh.build({"y": x})
