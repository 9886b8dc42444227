"""The ways in which the fleet's pools turn chats into requests: tokenizer, model format, constraints."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np

from gateway.config import PoolSettings
from gateway.tokens.prompts import EncodedPrompt
from gateway.tokens.tokenizer import Tokenizer
from parsers.base import ModelFormat, OutputOptions, OutputParser
from parsers.plain import PlainFormat
from parsers.registry import get_format


class Encoding:
    """One tokenizer with one model format, and the pools that share the pair."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model_format: ModelFormat,
        pools: Collection[str],
        *,
        constrains: bool = True,
        sees: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.model_format = model_format
        self.pools = frozenset(pools)
        self.constrains = constrains
        """The workers can keep an answer to a grammar."""
        self.stop_ids_json = b",".join(b"%d" % each for each in model_format.stop_token_ids)
        self.sees = sees
        """The workers take images."""
        self._plain = PlainFormat(model_format.stop_token_ids)

    def __repr__(self) -> str:
        return f"<Encoding {self.model_format.name} of {', '.join(sorted(self.pools))}>"

    def parser(self, options: OutputOptions | None) -> OutputParser:
        """A parser of one answer; without options, of a completion that is no chat."""
        detokenizer = self.tokenizer.detokenizer()
        if options is None:
            return self._plain.parser(OutputOptions(thinking=False), detokenizer)
        return self.model_format.parser(options, detokenizer)

    def routed_by(self, prompt: EncodedPrompt, images: Sequence[str]) -> EncodedPrompt:
        """The prompt with ids, from its first image on, that tell these images, by their ids, from others.

        Workers hash an image's blocks in ways of their own: overlap counts up to the first image. What goes
        to a worker is as it was.
        """
        marker = self.model_format.image_marker
        if marker is None:
            return prompt
        places = np.flatnonzero(prompt.ids == self.tokenizer.vocabulary.control_id(marker))
        digest = hashlib.sha256("".join(images).encode()).digest()
        ids = prompt.ids.copy()
        ids[places[0] :] ^= np.uint32(int.from_bytes(digest[:4], "big") | 0x8000_0000)
        return EncodedPrompt(ids, prompt.ids_json)


class Encodings:
    """All of a gateway's encodings, each once."""

    def __init__(self, encodings: Sequence[Encoding]) -> None:
        """Their pools must not overlap."""
        self.all = tuple(encodings)

    @classmethod
    def load(cls, pools: Sequence[PoolSettings]) -> Encodings:
        """Loads each tokenizer once. Raises TokenizerError; the pools' settings are filled in."""
        groups: dict[tuple[str | None, str | None, str | None, str | None], list[str]] = {}
        for pool in pools:
            kind = pool.tokenizer, pool.model_format, pool.constrained_by, pool.images
            groups.setdefault(kind, []).append(pool.name)
        tokenizers: dict[tuple[str | None, str], Tokenizer] = {}
        encodings = []
        for (directory, format_name, constrained_by, images), names in groups.items():
            model_format = get_format(format_name or "")
            key = directory, model_format.family
            if key not in tokenizers:
                tokenizers[key] = Tokenizer.load(model_format, directory)
            encodings.append(
                Encoding(
                    tokenizers[key],
                    model_format,
                    names,
                    constrains=constrained_by != "prompt",
                    sees=images == "forwarded",
                )
            )
        return cls(encodings)

    def of_pools(self, pools: Collection[str]) -> Sequence[Encoding]:
        """The encodings that some of these pools take; all when no pool is known yet."""
        if len(self.all) == 1:
            return self.all
        return [each for each in self.all if not each.pools.isdisjoint(pools)] or self.all
