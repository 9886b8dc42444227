"""`python -m loadtests.gpu.weights DIR`, in an environment with torch and transformers: weights that matter.

An engine's own dummy weights are so small that its output is the same whatever the context holds, and shows
nothing of a KV cache. These are random, with peaked attention and with states that forget slowly, so that
the output depends on far parts of the prompt; and each layer adds about as much as there is, so that rounding
stays small.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from loadtests.gpu.shapes import SHAPES, write_model

SEED = 7
PEAKED = 2.5
"""Gain of queries and keys without norms: attention logits have its square as their deviation."""
NORMED = 1.5
"""Weight of query and key norms that multiply by one more than it."""
CONSTANT = 6.0
"""One coordinate of every embedding, for gates to have a bias."""
GATE_BIAS = -1.0
DECAY = -5.0
"""Logarithm of a state's decay rate."""


def main() -> int:
    directory, shape = Path(sys.argv[1]), sys.argv[2]
    write_model(directory, shape)
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(SEED)
    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _fill(name, weight, hybrid=shape == "hybrid")
    model.to(getattr(torch, SHAPES[shape]["torch_dtype"])).cpu().save_pretrained(directory)
    write_model(directory, shape)  # `save_pretrained` writes a config of its own
    count = sum(weight.numel() for weight in model.parameters())
    print(json.dumps({"model": shape, "directory": str(directory), "parameters": count}))
    return 0


def _fill(name: str, weight: Any, hybrid: bool) -> None:
    part = name.removesuffix(".weight").rpartition(".")[2]
    if weight.dim() > 1:
        gain = PEAKED if part in ("q_proj", "k_proj") else 1.0
        fan_in = weight[0].numel()
        weight.normal_(0, 1.0 if part == "embed_tokens" else gain / fan_in**0.5)
        if part == "embed_tokens":
            weight[:, 0] = CONSTANT
        elif part == "in_proj_ba":
            weight[:, 0] = GATE_BIAS
    elif part in ("q_norm", "k_norm"):
        weight.fill_(NORMED)
    elif part == "A_log":
        weight.fill_(DECAY)
    elif part == "dt_bias" or (hybrid and "linear_attn.norm" not in name):
        weight.zero_()  # those norms multiply by one more than their weight
    else:
        weight.fill_(1.0)


if __name__ == "__main__":
    sys.exit(main())
