"""A model directory for Dynamo's mock worker: a byte-level BPE of the standard library, a template.

usage: make_model.py DIRECTORY      run by setup.sh with the Python of Dynamo's environment
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

VOCABULARY = 32_000
TRAINING_BYTES = 12_000_000
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1_048_576,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 1_048_576,
    "bos_token": "<|endoftext|>",
    "eos_token": "<|im_end|>",
    "chat_template": TEMPLATE,
}


def training_text() -> Iterator[str]:
    """Python sources, until there is enough."""
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(errors="ignore")
        size += len(text)
        if size > TRAINING_BYTES:
            return
        yield text


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    train().save(str(directory / "tokenizer.json"))
    for name, content in (
        ("config.json", CONFIG),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
        ("generation_config.json", {"eos_token_id": 2, "bos_token_id": 0}),
    ):
        (directory / name).write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
