"""GPT-3 in shape: 96 transformer layers of width 12,288, one op per matrix product (DiviML, §VI)."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.ir.flops import TRANSCENDENTAL_COST
from hsdag.models.workload import Workload, WorkloadBuilder


@dataclass(frozen=True)
class GptSizes:
    """The largest model of Brown et al. 2020 (Table 2.1), in f16; 20 tokens are one input of DiviML's Table V."""

    layers: int = 96
    width: int = 12_288
    heads: int = 96
    vocabulary: int = 50_257
    positions: int = 2048
    tokens: int = 20


def gpt3(sizes: GptSizes = GptSizes()) -> Workload:
    """One pass over ``tokens`` tokens, without a cache: 14 ops a layer, embedding, last norm and logits.

    Weights are held by the ops; the logits' product has its own copy of the embedding.
    """
    stack, t, d = WorkloadBuilder("gpt3", "f16"), sizes.tokens, sizes.width
    x = stack.add("embedding", "Gather", [], (t, d), 0.0, (sizes.vocabulary + sizes.positions) * d)
    for layer in range(sizes.layers):
        x = _add_layer(stack, f"layer{layer}", sizes, x)
    x = stack.add("norm", "MVN", [x], (t, d), float(TRANSCENDENTAL_COST["MVN"] * t * d), 2 * d)
    stack.add("logits", "MatMul", [x], (1, sizes.vocabulary), 2.0 * d * sizes.vocabulary, d * sizes.vocabulary)
    return stack.build()


def _add_layer(stack: WorkloadBuilder, name: str, sizes: GptSizes, x: int) -> int:
    """Append one layer behind op ``x``; its last op."""
    t, d, h = sizes.tokens, sizes.width, sizes.heads
    norm_flops = float(TRANSCENDENTAL_COST["MVN"] * t * d)

    def product(part: str, sources: list[int], rows: int, columns: int) -> int:
        flops, weights = 2.0 * t * rows * columns, (rows + 1) * columns
        return stack.add(f"{name}.{part}", "MatMul", sources, (t, columns), flops, weights)

    normed = stack.add(f"{name}.norm1", "MVN", [x], (t, d), norm_flops, 2 * d)
    query, key, value = (product(part, [normed], d, d) for part in ("query", "key", "value"))
    scores = stack.add(f"{name}.scores", "MatMul", [query, key], (h, t, t), 2.0 * t * t * d)
    softmax_flops = float(TRANSCENDENTAL_COST["Softmax"] * h * t * t)
    weights = stack.add(f"{name}.softmax", "Softmax", [scores], (h, t, t), softmax_flops)
    mixed = stack.add(f"{name}.mix", "MatMul", [weights, value], (t, d), 2.0 * t * t * d)
    projected = product("project", [mixed], d, d)
    x = stack.add(f"{name}.add1", "Add", [x, projected], (t, d), float(t * d))
    normed = stack.add(f"{name}.norm2", "MVN", [x], (t, d), norm_flops, 2 * d)
    up = product("up", [normed], d, 4 * d)
    gelu = stack.add(f"{name}.gelu", "Gelu", [up], (t, 4 * d), float(TRANSCENDENTAL_COST["Gelu"] * t * 4 * d))
    down = product("down", [gelu], 4 * d, d)
    return stack.add(f"{name}.add2", "Add", [x, down], (t, d), float(t * d))
