"""The BERT network in torch: embeddings, layers of self-attention and feed-forward, pooler.

Legend: B batch, T tokens, D width of a token, A attention heads.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from hsdag.models.bert import BertSizes

NORM_EPS = 1e-12


class Embeddings(nn.Module):
    """Word, token type and position embeddings, summed and normalised."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.token_types = nn.Embedding(sizes.token_types, sizes.hidden)
        self.positions = nn.Embedding(sizes.positions, sizes.hidden)
        self.norm = nn.LayerNorm(sizes.hidden, eps=NORM_EPS)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        """[B, T] and [B, T] -> [B, T, D]."""
        position_ids = torch.arange(input_ids.shape[1]).unsqueeze(0)
        x = self.words(input_ids) + self.token_types(token_type_ids) + self.positions(position_ids)
        normalised: torch.Tensor = self.norm(x)
        return normalised


class SelfAttention(nn.Module):
    """Scaled dot-product attention over A heads, and the projection of their joint output."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.split_shape = (sizes.heads, sizes.hidden // sizes.heads)
        self.scale = math.sqrt(sizes.hidden // sizes.heads)
        self.query = nn.Linear(sizes.hidden, sizes.hidden)
        self.key = nn.Linear(sizes.hidden, sizes.hidden)
        self.value = nn.Linear(sizes.hidden, sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Tokens [B, T, D] and the mask added to the scores [B, 1, 1, T] -> [B, T, D]."""
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / self.scale + bias
        context = torch.softmax(scores, dim=-1) @ value
        projected: torch.Tensor = self.output(context.permute(0, 2, 1, 3).reshape(x.shape))
        return projected

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, D] -> [B, A, T, D / A]."""
        return x.view(*x.shape[:2], *self.split_shape).permute(0, 2, 1, 3)


class Layer(nn.Module):
    """Self-attention and feed-forward part, each added to its input and normalised."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.attention = SelfAttention(sizes)
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=NORM_EPS)
        self.intermediate = nn.Linear(sizes.hidden, sizes.intermediate)
        self.output = nn.Linear(sizes.intermediate, sizes.hidden)
        self.output_norm = nn.LayerNorm(sizes.hidden, eps=NORM_EPS)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Tokens [B, T, D] and the mask added to the scores [B, 1, 1, T] -> [B, T, D]."""
        x = self.attention_norm(self.attention(x, bias) + x)
        forwarded = self.output(functional.gelu(self.intermediate(x)))
        normalised: torch.Tensor = self.output_norm(forwarded + x)
        return normalised


class Bert(nn.Module):
    """BERT encoder with pooler (Devlin et al. 2019, section 3)."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.pooler = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Three times [B, T] -> last hidden state [B, T, D], pooler output [B, D]; mask 0 hides a token."""
        bias = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))
