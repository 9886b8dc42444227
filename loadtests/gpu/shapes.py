"""The models: small shapes with much KV cache, and a vocabulary whose text is its ids.

The gateway's `tiktoken.model` spells token 17 as "17 ", so the text of an answer tells its ids.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VOCABULARY = 2048
FIRST_ID, END_ID = 10, 2000
"""Prompts consist of ids from the first up to, without, the last."""
BYTES_FROM = 3000
"""Ids of the single bytes, which a `tiktoken.model` must have; the models never say them."""

ATTENTION: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "bos_token_id": 0,
    "eos_token_id": 2,
}
"""65,536 bytes of KV cache a token."""

HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "vocab_size": VOCABULARY,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10_000_000,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "decoder_sparse_step": 1,
    "mlp_only_layers": list(range(8)),
    "norm_topk_prob": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
"""Three groups of gated delta nets and one of attention; every layer dense."""

SHAPES = {"attention": ATTENTION, "hybrid": HYBRID}


def write_model(directory: Path, shape: str) -> None:
    """All of a model but its weights, and the gateway's vocabulary in `vocabulary/`."""
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {
        "config.json": SHAPES[shape],
        "generation_config.json": {"eos_token_id": 2},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 131_072,
            "eos_token": "t2",
            "pad_token": "t0",
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    vocabulary = directory / "vocabulary"
    vocabulary.mkdir(exist_ok=True)
    pieces = [(b"%d " % token, token) for token in range(VOCABULARY)]
    pieces += [(bytes([byte]), BYTES_FROM + byte) for byte in range(256)]
    lines = (base64.b64encode(piece) + b" %d\n" % rank for piece, rank in pieces)
    (vocabulary / "tiktoken.model").write_bytes(b"".join(lines))


def spelled(ids: Iterable[int]) -> str:
    """What the gateway makes of these ids."""
    return b"".join(map(_piece, ids)).decode(errors="replace")


def _piece(token: int) -> bytes:
    return b"%d " % token if token < BYTES_FROM else bytes([token - BYTES_FROM])


def _tokenizer() -> dict[str, Any]:
    """Words t0, t1, ...: no text is ever tokenized with it."""
    words = {f"t{number}": number for number in range(VOCABULARY)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
