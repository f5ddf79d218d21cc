"""The Llama decoder in torch: RMS norms, rotated queries and keys, grouped heads, gated feed-forward part.

Legend: B batch, T tokens, D width of a token, A query heads, K key heads, E width of a head.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hsdag.models.llama_decoder import NORM_EPS, ROTARY_BASE, LlamaDecoderSizes


def rotary_angles(num_tokens: int, head_size: int) -> torch.Tensor:
    """Angles [T, E / 2] of each position's pairs (Su et al. 2021, eq. 15)."""
    positions = torch.arange(num_tokens, dtype=torch.float32)
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    return positions[:, None] * frequencies


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, half: int) -> torch.Tensor:
    """Heads [B, A, T, E] turned by angles with these cosines and sines [T, half = E / 2]; pair i is (i, i + half)."""
    first, second = torch.split(x, half, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal attention in which each key head serves A / K query heads (Ainslie et al. 2023)."""

    def __init__(self, sizes: LlamaDecoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.joint_shape = (sizes.tokens, sizes.hidden)
        width, key_width = sizes.hidden, sizes.key_heads * sizes.head_size
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_width, bias=False)
        self.value = nn.Linear(width, key_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Tokens [B, T, D], cosines and sines [T, E / 2], seen [T, T] (which keys a query sees) -> [B, T, D]."""
        heads, key_heads, half = self.sizes.heads, self.sizes.key_heads, self.sizes.head_size // 2
        query = rotate(self._heads(self.query(x), heads), cos, sin, half)
        key = self._shared(rotate(self._heads(self.key(x), key_heads), cos, sin, half))
        value = self._shared(self._heads(self.value(x), key_heads))
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        projected: torch.Tensor = self.output(context.permute(0, 2, 1, 3).reshape(-1, *self.joint_shape))
        return projected

    def _heads(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """[B, T, heads E] -> [B, heads, T, E]."""
        return x.view(-1, self.sizes.tokens, heads, self.sizes.head_size).permute(0, 2, 1, 3)

    def _shared(self, x: torch.Tensor) -> torch.Tensor:
        """[B, K, T, E] -> [B, A, T, E]: query heads of one group are adjacent."""
        sizes = self.sizes
        wide = x[:, :, None].expand(-1, -1, sizes.heads // sizes.key_heads, -1, -1)
        return wide.reshape(-1, sizes.heads, sizes.tokens, sizes.head_size)


class Layer(nn.Module):
    """Attention and gated feed-forward part, each on the normalised tokens and added to them."""

    def __init__(self, sizes: LlamaDecoderSizes) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.hidden, eps=NORM_EPS)
        self.attention = Attention(sizes)
        self.norm = nn.RMSNorm(sizes.hidden, eps=NORM_EPS)
        self.gate = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """As Attention; the feed-forward part is SwiGLU (Shazeer 2020, eq. 6)."""
        x = x + self.attention(self.attention_norm(x), cos, sin, seen)
        inner = self.norm(x)
        added: torch.Tensor = x + self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return added


class LlamaDecoder(nn.Module):
    """Embedding, layers, last norm and the logits of every token (Touvron et al. 2023, section 2.2)."""

    def __init__(self, sizes: LlamaDecoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=NORM_EPS)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[B, T] -> logits [B, T, vocabulary]; a token sees itself and those before it."""
        positions = torch.arange(self.sizes.tokens)
        angles = rotary_angles(self.sizes.tokens, self.sizes.head_size)
        cos, sin, seen = angles.cos(), angles.sin(), positions[None, :] <= positions[:, None]
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, seen)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits
