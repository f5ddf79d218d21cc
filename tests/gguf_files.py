"""A GGUF file of a small Llama with random weights, written by the format's definition."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

WIDTH, HEADS, LAYERS, HIDDEN, WORDS, ALIGNMENT = 64, 4, 1, 96, 32, 32
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
"""Types of values, as the format numbers them; tensors of f32 have type 0."""


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    if isinstance(value, list):
        kind, pack = (STRING, _text) if isinstance(value[0], str) else (FLOAT32, lambda x: struct.pack("<f", x))
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(map(pack, value))
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    return struct.pack("<If", FLOAT32, value) if isinstance(value, float) else struct.pack("<II", UINT32, value)


def llama_file(path: Path) -> Path:
    """One layer, in f32."""
    rng = np.random.default_rng(0)
    sizes: dict[str, tuple[int, ...]] = {
        "token_embd": (WORDS, WIDTH),
        "output_norm": (WIDTH,),
        "output": (WORDS, WIDTH),
    }
    for layer in range(LAYERS):
        own: dict[str, tuple[int, ...]] = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        own |= {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH)}
        own["ffn_down"] = (WIDTH, HIDDEN)
        sizes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    known = {
        "general.architecture": "llama",
        "general.file_type": 0,
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": WORDS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [f"w{k}" for k in range(WORDS)],
        "tokenizer.ggml.scores": [0.0] * WORDS,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(sizes), len(known))
    head += b"".join(_text(key) + _value(value) for key, value in known.items())
    data = b""
    for name, shape in sizes.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += _text(f"{name}.weight") + dims + struct.pack("<IQ", 0, len(data))
        data += (rng.standard_normal(shape) / 8).astype(np.float32).tobytes()
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return path
