"""One Llama layer by itself (block), or between the embedding and the logits (layer), sharded (DOPPLER, App. D.3)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from hsdag.models.ffnn import softmax
from hsdag.models.sharding import Sharded, Sharder
from hsdag.models.workload import Workload


@dataclass(frozen=True)
class LlamaSizes:
    """The shape of the 7B model. Weights and activations are f16; norms, rotation and softmax run in f32."""

    tokens: int = 4096
    width: int = 4096
    heads: int = 32
    hidden: int = 11_008
    vocabulary: int = 32_000
    epsilon: float = 1e-5


@dataclass(frozen=True)
class _Plan:
    """k devices as a grid: heads in ``h`` groups, tokens in ``s`` parts, h s = k."""

    sharder: Sharder
    sizes: LlamaSizes
    k: int
    h: int
    s: int

    @staticmethod
    def of(name: str, num_devices: int, sizes: LlamaSizes) -> _Plan:
        """The most even grid whose h is a multiple of s: 2 x 2 for four devices, 4 x 2 for eight."""
        k = num_devices
        s = next(s for s in range(isqrt(k), 0, -1) if k % s == 0 and (k // s) % s == 0)
        return _Plan(Sharder(name, k), sizes, k, k // s, s)

    def weight(self, name: str, shape: tuple[int, ...], parts: tuple[int, ...]) -> Sharded:
        return self.sharder.input(name, shape, parts, "f16")

    def norm(self, name: str, x: Sharded, parts: tuple[int, int]) -> Sharded:
        """x / sqrt(mean(x^2) + epsilon) * gamma, [tokens, width]: sums by the tiles of x, the result in ``parts``."""
        sh = self.sharder
        wide = sh.elementwise(f"{name}.f32", "convert:f32", [x])
        total = sh.reduce(f"{name}.sum", "sum", sh.elementwise(f"{name}.square", "square", [wide]), wide.parts)
        factor, offset = 1 / self.sizes.width, self.sizes.epsilon
        mean = sh.elementwise(f"{name}.mean", f"affine:factor={factor!r},offset={offset!r}", [total])
        inverse = sh.elementwise(f"{name}.rsqrt", "rsqrt", [mean])
        scaled = sh.elementwise(f"{name}.scale", "mul", [wide, inverse], parts)
        narrow = sh.elementwise(f"{name}.f16", "convert:f16", [scaled])
        gamma = self.weight(f"{name}.gamma", (self.sizes.width,), (parts[1],))
        return sh.elementwise(f"{name}.gamma_scale", "mul", [narrow, gamma])

    def project(self, name: str, x: Sharded, cuts: dict[str, int]) -> Sharded:
        """Heads of ``x``, [heads, tokens, head size]: cut t tokens, e width, h heads."""
        shape = (self.sizes.width, self.sizes.heads, self.sizes.width // self.sizes.heads)
        weight = self.weight(f"{name}.weight", shape, (cuts.get("e", 1), cuts.get("h", 1), 1))
        return self.sharder.einsum(name, "te,ehd->htd", cuts, x, weight)

    def rotate(self, name: str, x: Sharded, frequencies: Sharded) -> Sharded:
        """Rotary positions: pairs of x, as complex numbers, times the frequencies of their token."""
        sh = self.sharder
        pairs = sh.each(f"{name}.complex", "complex", sh.elementwise(f"{name}.f32", "convert:f32", [x]))
        turned = sh.elementwise(f"{name}.rotate", "mul", [pairs, frequencies])
        return sh.elementwise(f"{name}.f16", "convert:f16", [sh.each(f"{name}.real", "real", turned)])

    def attend(self, query: Sharded, key: Sharded, cuts: dict[str, int], mask: Sharded | None) -> Sharded:
        """Attention weights, [heads, query tokens, key tokens] in f16: cut h heads, q queries, t keys."""
        sh, parts = self.sharder, (cuts["h"], cuts.get("q", 1), cuts.get("t", 1))
        scores = sh.einsum("scores", "hqd,htd->hqt", cuts, query, key)
        factor = (self.sizes.width // self.sizes.heads) ** -0.5
        scores = sh.elementwise("scores.scale", f"affine:factor={factor!r},offset=0.0", [scores])
        if mask is not None:
            scores = sh.elementwise("scores.mask", "add", [scores, mask])
        wide = sh.elementwise("scores.f32", "convert:f32", [scores])
        return sh.elementwise("softmax.f16", "convert:f16", [softmax(sh, "softmax", wide, parts)])

    def feed_forward(self, x: Sharded, rows: int, columns: int) -> Sharded:
        """W2 (silu(W1 x) * W3 x), [tokens, width], the hidden axis in ``columns`` parts."""
        sh, shape = self.sharder, (self.sizes.width, self.sizes.hidden)
        cuts = {"t": rows, "f": columns}
        gate, up = (
            sh.einsum(name, "te,ef->tf", cuts, x, self.weight(f"{name}.weight", shape, (1, columns)))
            for name in ("W1", "W3")
        )
        inner = sh.elementwise("gate", "mul", [sh.elementwise("silu", "silu", [gate]), up])
        return sh.einsum("W2", "tf,fe->te", cuts, inner, self.weight("W2.weight", shape[::-1], (columns, 1)))

    def output(self, x: Sharded, cuts: dict[str, int]) -> Sharded:
        """Heads [heads, tokens, head size] back to [tokens, width]: cut t tokens, h heads, e width."""
        shape = (self.sizes.heads, self.sizes.width // self.sizes.heads, self.sizes.width)
        weight = self.weight("O.weight", shape, (cuts["h"], 1, cuts.get("e", 1)))
        return self.sharder.einsum("O", "htd,hde->te", cuts, x, weight)


def llama_block(num_devices: int, sizes: LlamaSizes = LlamaSizes()) -> Workload:
    """One transformer block on k devices without a mask; 215 nodes for four.

    Keys are cut along the tokens, so each query meets its keys in s partial results. Its inputs are the
    activations ``x`` and complex ``frequencies`` [tokens, head size / 2]. Raises OptionError where an axis
    cannot be cut.
    """
    plan = _Plan.of("llama-block", num_devices, sizes)
    sh, k, h, s = plan.sharder, plan.k, plan.h, plan.s
    pairs = sizes.width // sizes.heads // 2
    x = sh.input("x", (sizes.tokens, sizes.width), (s, h), "f16")
    frequencies = sh.input("frequencies", (sizes.tokens, pairs), (s, 1), "c64")
    normed = plan.norm("norm1", x, (s, h))
    query = plan.rotate("Q", plan.project("Q", normed, {"h": h, "e": s}), frequencies)
    key = plan.rotate("K", plan.project("K", normed, {"t": s, "h": h}), frequencies)
    value = plan.project("V", normed, {"t": s, "h": h})
    weights = plan.attend(query, key, {"h": h, "t": s}, None)
    mixed = sh.einsum("AV", "hqt,htd->hqd", {"h": h, "t": s}, weights, value)
    added = sh.elementwise("residual1", "add", [plan.output(mixed, {"h": h, "e": s}), x])
    inner = plan.feed_forward(plan.norm("norm2", added, (1, 1)), 1, k)
    return sh.build({"y": sh.elementwise("residual2", "add", [inner, added])})


def llama_layer(num_devices: int, sizes: LlamaSizes = LlamaSizes()) -> Workload:
    """One layer with causal mask, last norm and the logits of the last token, on k devices; 261 nodes for four.

    Queries are cut along the tokens, so every softmax is local. Inputs are the embedded tokens ``x`` and
    ``frequencies`` [tokens, head size], cosine and sine in turn. Raises OptionError where an axis cannot be cut.
    """
    plan = _Plan.of("llama-layer", num_devices, sizes)
    sh, k, h, s = plan.sharder, plan.k, plan.h, plan.s
    tokens, width = sizes.tokens, sizes.width
    x = sh.input("x", (tokens, width), (s, h), "f16")
    angles = sh.input("frequencies", (tokens, width // sizes.heads), (s, 1), "f32")
    frequencies = sh.each("frequencies.complex", "complex", angles, (1, 1))
    causal = "causal:rows={size[0]},columns={size[1]},first_row={first[0]}"
    mask = sh.constant("mask", causal, (tokens, tokens), (s, 1))
    normed = plan.norm("norm1", x, (s, h))
    query = plan.rotate("Q", plan.project("Q", normed, {"t": s, "h": h}), frequencies)
    key = plan.rotate("K", plan.project("K", normed, {"h": h, "e": s}), frequencies)
    value = plan.project("V", normed, {"h": h, "e": s})
    weights = plan.attend(query, key, {"h": h, "q": s}, mask)
    mixed = sh.einsum("AV", "hqt,htd->hqd", {"h": h, "q": s}, weights, value)
    added = sh.elementwise("residual1", "add", [plan.output(mixed, {"t": s, "h": h}), x])
    inner = plan.feed_forward(plan.norm("norm2", added, (s, 1)), s, h)
    final = plan.norm("norm3", sh.elementwise("residual2", "add", [inner, added]), (s, 1))
    last = sh.part("last", final, ((tokens - 1, tokens), (0, width)))
    row = sh.each("last.squeeze", f"reshape:{width}", last)
    head = plan.weight("head.weight", (width, sizes.vocabulary), (1, k))
    return sh.build({"logits": sh.einsum("head", "e,ev->v", {"v": k}, row, head), "hidden": final})
