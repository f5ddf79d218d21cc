"""Build language-model decoders as OpenVINO models, op by op, with or without state and with compressed weights.

A layer has RMS norms, rotary positions, grouped-query attention and a gated feed-forward part (Touvron et al. 2023), or
several feed-forward parts in a mixture of experts (Jiang et al. 2024). The rotary table and the attention mask are
computed once from the inputs and shared by all layers. Compressed weights are the chains that NNCF leaves in a model:
Constant, Convert, Subtract (zero point), Multiply (scale), Reshape where a group of weights shares a scale, Convert.

Legend: B sequences, T new tokens, S tokens including the earlier ones, D width of a token, A query heads, K key heads,
H width of a head, X experts, I width inside the feed-forward part.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo
from openvino.utils.node_factory import NodeFactory

from hsdag.ir.graph.build import name_by_consumer
from hsdag.models.sizes import NORM_EPS, ROTARY_BASE, DecoderSizes, WeightPrecision

HIDDEN_TOKEN = float(np.finfo(np.float16).min)
"""Value that the attention mask adds to the scores of tokens that must not be seen: the lowest finite fp16 number."""

FIRST, SECOND = np.int64(0), np.int64(1)
"""The integers 0 and 1, used as axis numbers and as scalar constants."""

Value: TypeAlias = Any  # a node or one of its outputs


def decoder_model(name: str, sizes: DecoderSizes, precision: WeightPrecision, seed: int) -> ov.Model:
    """Return a decoder of the given sizes with weights drawn from ``seed`` and stored in ``precision``.

    The model is stateless if ``sizes.tokens`` is positive, and otherwise keeps its keys and values in variables.
    """
    return _DecoderBuilder(sizes, precision, np.random.default_rng(seed)).model(name)


class _Weights:
    """Weights of a decoder, drawn in the order in which they are asked for."""

    def __init__(self, sizes: DecoderSizes, precision: WeightPrecision, rng: np.random.Generator) -> None:
        self.sizes = sizes
        self.precision = precision
        self.rng = rng

    def _drawn(self, *shape: int) -> Array:
        """Draw normal weights of variance 1 / fan-in, where the fan-in is the size of the last axis."""
        values: Array = self.rng.standard_normal(shape, dtype=np.float32)
        values /= np.sqrt(shape[-1])
        return values

    def weight(self, name: str, *shape: int) -> Value:
        """Draw a weight of this shape and return it stored in the decoder's precision."""
        values = self._drawn(*shape)
        if self.precision == "int4":
            return nibble_weight(name, values, self.sizes.group)
        return byte_weight(name, values) if self.precision == "int8" else half_weight(name, values)

    def table(self, name: str) -> Value:
        """Draw the input or output embedding [vocabulary, D]; as in NNCF's models, int4 decoders store it in int8."""
        values = self._drawn(self.sizes.vocabulary, self.sizes.hidden)
        if "embed" in name:
            values *= np.sqrt(self.sizes.hidden)
        return half_weight(name, values) if self.precision == "fp16" else byte_weight(name, values)

    def gamma(self, name: str) -> Value:
        """Draw the factors of a norm [1, 1, D], stored in fp16."""
        return half_weight(name, self.rng.uniform(0.8, 1.2, (1, 1, self.sizes.hidden)).astype(np.float32))


class _DecoderBuilder:
    """Builder of one decoder model."""

    def __init__(self, sizes: DecoderSizes, precision: WeightPrecision, rng: np.random.Generator) -> None:
        self.sizes = sizes
        self.weights = _Weights(sizes, precision, rng)
        count = sizes.tokens
        self.ids, self.seen, self.positions = self.parameters = [
            op.parameter([1, count] if count else [-1, -1], np.int64, name=name)
            for name in ("input_ids", "attention_mask", "position_ids")
        ]
        self.beams = op.parameter([-1], np.int32, name="beam_idx")
        self.parameters = [self.ids] if count else [*self.parameters, self.beams]
        if count:  # all tokens are visible and at fixed positions, so mask and positions are constants
            self.seen, self.positions = (op.constant(x[None]) for x in (np.ones(count, np.int64), np.arange(count)))
        self.assigns: list[ov.Node] = []

    def model(self, name: str) -> ov.Model:
        """Return the model, from token ids [B, T] to logits [B, T, vocabulary]."""
        cos, sin = self._rotary()
        mask = self._mask()
        table = self.weights.table("model.embed_tokens.weight")
        x = op.gather(table, op.convert(self.ids, np.int32), FIRST, name="embed")
        for layer in range(self.sizes.layers):
            at = f"model.layers.{layer}"
            attended = self._attention(at, self._norm(f"{at}.input_layernorm", x), cos, sin, mask)
            x = op.add(x, attended, name=f"{at}/residual")
            inner = self._norm(f"{at}.post_attention_layernorm", x)
            part = self._experts(f"{at}.mlp", inner) if self.sizes.experts else self._feed_forward(f"{at}.mlp", inner)
            x = op.add(x, part, name=f"{at}/output")
        head = op.matmul(self._norm("model.norm", x), self.weights.table("lm_head.weight"), False, True, name="lm_head")
        for parameter in self.parameters:
            parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
        head.output(0).get_tensor().set_names({"logits"})
        model = ov.Model([op.result(head, name="logits/result")], self.assigns, self.parameters, name)
        name_by_consumer(model)
        return model

    def _linear(self, name: str, x: Value, rows: int, columns: int) -> Value:
        """Multiply ``x`` [..., columns] by a drawn weight [rows, columns] transposed; return [..., rows]."""
        return op.matmul(x, self.weights.weight(f"{name}.weight", rows, columns), False, True, name=name)

    def _norm(self, name: str, x: Value) -> Value:
        """Return the RMS norm x / sqrt(mean(x^2) + epsilon) * gamma, [B, T, D]."""
        mean = op.reduce_mean(op.power(x, _real(2.0)), [-1], True)
        inverse = op.divide(_real(1.0), op.sqrt(op.add(mean, _real(NORM_EPS))))
        return op.multiply(self.weights.gamma(f"{name}.weight"), op.multiply(x, inverse), name=f"{name}/gamma")

    def _rotary(self) -> tuple[Value, Value]:
        """Return the cosine and sine [B, 1, T, H] of each token's rotary angles (Su et al. 2021, eq. 15)."""
        size = self.sizes.head_size
        frequencies = (ROTARY_BASE ** (-np.arange(0, size, 2, dtype=np.float32) / size)).reshape(1, -1, 1)
        places = op.convert(op.unsqueeze(self.positions, SECOND), np.float32)
        half = op.transpose(op.matmul(frequencies, places, False, False), [0, 2, 1])
        full = op.concat([half, half], -1)
        heads = op.constant(SECOND)
        cos, sin = (op.unsqueeze(turn(full), heads) for turn in (op.cos, op.sin))
        cos.set_friendly_name("rotary/cos4")
        sin.set_friendly_name("rotary/sin4")
        return cos, sin

    def _mask(self) -> Value:
        """Return the mask [B, 1, T, S] to add to scores: 0 where a token may see another, otherwise HIDDEN_TOKEN."""
        zero, one = op.constant(FIRST), op.constant(SECOND)
        new, all_ = (op.gather(op.shape_of(x), one, zero) for x in (self.ids, self.seen))
        columns = op.range(zero, all_, one, "i64")
        rows = op.unsqueeze(op.range(op.subtract(all_, new, name="mask/before"), all_, one, "i64"), one)
        visible = op.logical_and(op.less_equal(columns, rows), op.unsqueeze(op.convert(self.seen, "boolean"), [1, 2]))
        return op.select(visible, _real(0.0), _real(HIDDEN_TOKEN), name="mask")

    def _attention(self, at: str, x: Value, cos: Value, sin: Value, mask: Value) -> Value:
        """Return the attention of the new tokens to all tokens so far, projected to [B, T, D]."""
        sizes = self.sizes
        at = f"{at}.self_attn"
        query, key, value = (
            self._heads(self._linear(f"{at}.{name}_proj", x, count * sizes.head_size, sizes.hidden), count)
            for name, count in (("q", sizes.heads), ("k", sizes.key_heads), ("v", sizes.key_heads))
        )
        key = self._with_past(f"{at}.key", self._rotated(key, cos, sin))
        value = self._with_past(f"{at}.value", value)
        query = self._rotated(query, cos, sin)
        shape = self._shared_shape(at, key)
        key, value = (self._shared(f"{at}.{name}", x, shape) for name, x in (("key", key), ("value", value)))
        scale = _real(sizes.head_size**-0.5, ())
        context = op.scaled_dot_product_attention(query, key, value, mask, scale, name=f"{at}/attention")
        flat = op.reshape(op.transpose(context, [0, 2, 1, 3]), [0, 0, sizes.hidden], True)
        return self._linear(f"{at}.o_proj", flat, sizes.hidden, sizes.hidden)

    def _heads(self, x: Value, heads: int) -> Value:
        """Split [B, T, heads * H] into heads, [B, heads, T, H]."""
        return op.transpose(op.reshape(x, [0, 0, heads, self.sizes.head_size], True), [0, 2, 1, 3])

    def _rotated(self, x: Value, cos: Value, sin: Value) -> Value:
        """Rotate every head with halves x1, x2: return x cos + (-x2, x1) sin."""
        numbers = (0, self.sizes.head_size // 2, np.iinfo(np.int64).max, 1, 3)
        *ends, step, axis = (op.constant(np.array([number])) for number in numbers)
        first, second = (op.slice(x, *bounds, step, axis) for bounds in itertools.pairwise(ends))
        turned = op.concat([op.multiply(second, _real(-1.0)), first], -1)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    def _with_past(self, name: str, new: Value) -> Value:
        """Append new keys or values [B, K, T, H] to those of earlier inferences; return [B, K, S, H].

        The result is stored in the model variable ``name`` for the next inference. A stateless decoder returns ``new``.
        """
        if self.sizes.tokens:
            return new
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, self.sizes.key_heads, -1, self.sizes.head_size])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = Variable(info)
        batch = op.gather(op.shape_of(self.ids), [0], FIRST)
        shape = op.concat([batch, op.constant([self.sizes.key_heads, 0, self.sizes.head_size])], 0)
        read = op.read_value(op.broadcast(_real(0.0, ()), shape, name=f"{name}/empty"), variable)
        read.set_friendly_name(f"{name}/read")
        all_ = op.concat([op.gather(read, self.beams, FIRST, name=f"{name}/past"), new], 2, name=f"{name}/all")
        assign = op.assign(all_, variable)
        assign.set_friendly_name(f"{name}/assign")
        self.assigns.append(assign)
        return all_

    def _shared_shape(self, at: str, key: Value) -> Value:
        """Return a node that computes the shape [B, K, A / K, S, H] to which keys and values are broadcast."""
        sizes = self.sizes
        shape = op.shape_of(key, name=f"{at}/key/shape")
        first = op.constant(FIRST)
        outer, length = (op.gather(shape, axes, first) for axes in ([0, 1], [2]))
        copies, size = (op.constant([number]) for number in (sizes.heads // sizes.key_heads, sizes.head_size))
        return op.concat([outer, copies, length, size], 0, name=f"{at}/shared/shape")

    def _shared(self, name: str, x: Value, shape: Value) -> Value:
        """Repeat keys or values [B, K, S, H] for the query heads that share them; return [B, A, S, H]."""
        apart = op.unsqueeze(x, np.int64(2))
        wide = op.broadcast(apart, shape, broadcast_spec="BIDIRECTIONAL", name=f"{name}/wide")
        return op.reshape(wide, [0, self.sizes.heads, -1, self.sizes.head_size], True, name=f"{name}/heads")

    def _feed_forward(self, at: str, x: Value) -> Value:
        """Return the SwiGLU feed-forward part of x (Shazeer 2020, eq. 6), [B, T, D]."""
        gate = _silu(self._linear(f"{at}.gate_proj", x, self.sizes.intermediate, self.sizes.hidden))
        up = self._linear(f"{at}.up_proj", x, self.sizes.intermediate, self.sizes.hidden)
        return self._linear(f"{at}.down_proj", op.multiply(gate, up), self.sizes.hidden, self.sizes.intermediate)

    def _experts(self, at: str, x: Value) -> Value:
        """Return the weighted sum of each token's active experts, [B, T, D]; every expert computes every token."""
        sizes, width = self.sizes, self.sizes.hidden
        flat = op.reshape(x, [-1, width], False)
        repeated = op.reshape(op.tile(flat, [sizes.experts, 1]), [sizes.experts, -1, width], False)
        shape = sizes.experts, sizes.intermediate, width
        gate, up = (
            op.matmul(repeated, self.weights.weight(f"{at}.experts.{name}.weight", *shape),
                      False, True, name=f"{at}.experts.{name}")
            for name in ("gate_proj", "up_proj")
        )  # fmt: skip
        down = self.weights.weight(f"{at}.experts.down_proj.weight", sizes.experts, width, sizes.intermediate)
        outputs = op.matmul(op.multiply(_silu(gate), up), down, False, True, name=f"{at}.experts.down_proj")
        answers = op.reshape(outputs, [sizes.experts, 0, width], True)
        total = op.reduce_sum(op.multiply(answers, op.unsqueeze(self._shares(at, flat), np.int64(2))), [0], False)
        return op.reshape(total, op.shape_of(x), False)

    def _shares(self, at: str, x: Value) -> Value:
        """Return the share [X, B * T] of every expert in each token: of the ``active`` highest, with sum 1, else 0."""
        sizes = self.sizes
        scores = op.softmax(self._linear(f"{at}.gate", x, sizes.experts, sizes.hidden), 1)
        best = op.topk(scores, np.int64(sizes.active), -1, "max", "value", "i64")
        shares = op.divide(best.output(0), op.reduce_sum(best.output(0), [-1], True))
        numbers = op.convert(best.output(1), np.int32)
        tokens = op.gather(op.shape_of(numbers), [0], FIRST)
        zeros = op.broadcast(_real(0.0, ()), op.concat([tokens, op.constant([sizes.experts])], 0))
        start, step, axes = (np.array(values, np.int32) for values in ([0, 0], [1, 1], [0, 1]))
        active_shares = op.slice(shares, start, op.shape_of(numbers, "i32"), step, axes)
        spread = op.scatter_elements_update(zeros, numbers, active_shares, SECOND)
        return op.reshape(op.transpose(spread, [1, 0]), [sizes.experts, 0], True)


def _silu(x: Value) -> Value:
    """Return x * sigmoid(x) as one Swish op with one input, which plugins look for when they fuse experts."""
    return NodeFactory("opset4").create("Swish", [x], {})


def _real(value: float, shape: tuple[int, ...] = (1, 1, 1)) -> Value:
    """Return an f32 constant of the given shape, filled with one value."""
    return op.constant(np.full(shape, value, np.float32))


Array: TypeAlias = NDArray[np.float32]


def half_weight(name: str, values: Array) -> ov.Output:
    """Store values in fp16 and convert them to f32; return the converted output."""
    return op.convert(op.constant(values.astype(np.float16), name=name), np.float32, name=f"{name}/convert").output(0)


def byte_weight(name: str, values: Array) -> ov.Output:
    """Store values [..., K] as u8 with one scale and one zero point per row; return the f32 output."""
    codes, zero, scale = _quantised(values, 255)
    return _widened(name, op.constant(codes, name=name), op.constant(zero, name=f"{name}/zero_point"), scale, None)


def nibble_weight(name: str, values: Array, group: int) -> ov.Output:
    """Store values [..., K] as u4 with one scale and one zero point per ``group`` values; return the f32 output.

    ``group`` must divide K.
    """
    codes, zero, scale = _quantised(values.reshape(*values.shape[:-1], -1, group), 15)
    stored = op.constant(codes, ov.Type.u4, name=name)
    zeros = op.constant(zero, ov.Type.u4, name=f"{name}/zero_point")
    return _widened(name, stored, zeros, scale, values.shape)


def _quantised(values: Array, largest: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float16]]:
    """Quantise ``values`` [..., G] to 0..``largest``, so that value = (code - zero point) * scale.

    Returns codes [..., G], zero points [..., 1] and scales [..., 1].
    """
    low, high = np.minimum(values.min(-1, keepdims=True), 0), np.maximum(values.max(-1, keepdims=True), 0)
    scale = (np.maximum(high - low, 1e-5) / largest).astype(np.float16)
    zero = np.clip(np.rint(-low / scale), 0, largest)
    return np.clip(np.rint(values / scale) + zero, 0, largest).astype(np.uint8), zero.astype(np.uint8), scale


def _widened(
    name: str, stored: ov.Node, zero: ov.Node, scale: NDArray[np.float16], shape: tuple[int, ...] | None
) -> ov.Output:
    """Return (stored - zero) * scale as f32, reshaped to ``shape`` unless that is None."""
    wide = [op.convert(node, np.float16, name=f"{node.get_friendly_name()}/wide") for node in (stored, zero)]
    centred = op.subtract(*wide, name=f"{name}/zero_point/subtract")
    value: Any = op.multiply(centred, op.constant(scale, name=f"{name}/scale"), name=f"{name}/scaled")
    if shape is not None:
        target = op.constant(np.asarray(shape, np.int64), name=f"{name}/shape")
        value = op.reshape(value, target, special_zero=False, name=f"{name}/reshape")
    return op.convert(value, np.float32, name=f"{name}/convert").output(0)
