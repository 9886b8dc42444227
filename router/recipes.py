"""Block hashes as the engines themselves compute them, where they can be computed outside an engine.

An engine chains whole digests and publishes 64 bits of each. vLLM hashes (parent digest, tokens, extra keys),
serialized; its chain starts at the digest of a seed: a fixed one, or the PYTHONHASHSEED that the engine was
given. SGLang hashes the parent digest and the tokens as little-endian uint32.

vLLM's unit may be smaller than the blocks that it announces: then a block's hash is that of its last unit.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from router.events import BlockStored, EngineHash
from router.hashing import HashMemo
from router.messages import TokenIds

_VLLM_SEEDS = ("vllm-none-hash", "0", "1", "42")
"""The default, and what deployments set."""
_SGLANG_SALT = b"sglang-cache-salt-v1\0"
_PICKLE = 5
"""Of every Python from 3.8 on; part of vLLM's hash."""
_SMALLEST_UNIT = 16
_LARGEST_TRIED = 8192
_FIRST_STRIDE = 8
_MASK = 0xFFFF_FFFF_FFFF_FFFF

_Step = Callable[[bytes, bytes, str | None], bytes]


class Recipe(NamedTuple):
    """How one engine hashes."""

    name: str
    root: Callable[[str | None], bytes]
    """The first block's parent, by cache salt."""
    step: _Step
    """A digest from the parent's, the tokens (uint32), and the cache salt (None but in the first unit)."""
    published: int
    """Where in a digest the 8 bytes begin that are published as an integer."""
    units: bool
    """Whether blocks may consist of several units."""

    def key(self, digest: bytes) -> int:
        """The published part as an unsigned number."""
        return int.from_bytes(digest[self.published : self.published + 8], "big")


class Layout(NamedTuple):
    """What a worker was found to use."""

    recipe: Recipe
    unit: int
    """Tokens to a hash."""

    def __str__(self) -> str:
        return f"{self.recipe.name}/{self.unit}"


def key_of(block: EngineHash, published: int) -> int:
    """A published hash as `Recipe.key` gives it, whether it came signed, unsigned or as the whole digest."""
    if isinstance(block, int):
        return block & _MASK
    return int.from_bytes(block[published : published + 8], "big")


class EngineChain:
    """The lazy chain of one prompt; the same to look-ups as `hashing.PrefixChain`."""

    __slots__ = ("_digests", "_layout", "_salt", "_tokens", "hashes", "length")

    def __init__(
        self,
        tokens: TokenIds,
        layout: Layout,
        cache_salt: str | None = None,
        length: int | None = None,
        memo: HashMemo | None = None,
    ) -> None:
        """`length` bounds the chain, in units; at most the whole units of `tokens`."""
        whole = len(tokens) // layout.unit
        self._tokens = tokens
        self._layout = layout
        self._salt = cache_salt
        self.length = whole if length is None else min(length, whole)
        self.hashes: list[int] = []
        """What is hashed so far, as published."""
        name = f"{layout.recipe.name}:{cache_salt}"
        self._digests = [] if memo is None else memo.digests(layout.unit, name)

    def grow(self) -> bool:
        """Hash some more units; False when the chain was complete."""
        return self.grow_to(max(2 * len(self.hashes), _FIRST_STRIDE))

    def grow_to(self, units: int) -> bool:
        """Hash up to so many units; False when there was nothing left to hash."""
        done = len(self.hashes)
        upto = min(self.length, units)
        if upto <= done:
            return False
        if len(self._digests) < upto:
            self._hash(len(self._digests), upto)
        key = self._layout.recipe.key
        self.hashes += [key(digest) for digest in self._digests[done:upto]]
        return True

    def end(self) -> int:
        """The published hash of all whole units; 0 when there are none."""
        whole = len(self._tokens) // self._layout.unit
        if len(self._digests) < whole:
            self._hash(len(self._digests), whole)
        return self._layout.recipe.key(self._digests[whole - 1]) if whole else 0

    def _hash(self, start: int, stop: int) -> None:
        recipe, unit = self._layout
        digests = self._digests
        parent = digests[start - 1] if start else recipe.root(self._salt)
        salt = None if start else self._salt
        raw = self._tokens[start * unit : stop * unit].tobytes()
        step, size = recipe.step, 4 * unit
        for at in range(0, len(raw), size):
            parent = step(parent, raw[at : at + size], salt)
            digests.append(parent)
            salt = None


class BlockChain:
    """The hashes at whole blocks of an engine's chain of units."""

    __slots__ = ("_stride", "_units", "hashes", "length")

    def __init__(self, units: EngineChain, stride: int) -> None:
        self._units = units
        self._stride = stride
        self.length = units.length // stride
        self.hashes: list[int] = []

    def grow(self) -> bool:
        """As `EngineChain.grow`, in blocks."""
        done = len(self.hashes)
        if done >= self.length:
            return False
        self._units.grow_to(min(self.length, max(2 * done, 1)) * self._stride)
        self.hashes += self._units.hashes[(done + 1) * self._stride - 1 :: self._stride]
        return True

    def end(self) -> int:
        """As `EngineChain.end`."""
        return self._units.end()


def identify(event: BlockStored) -> Layout | None:
    """The recipe and unit that give the first hash of a store at a prompt's start; None when none does.

    The store must bring the tokens of its first block, and nothing but tokens and a salt.
    """
    first = event.block_hashes[0]
    size = event.block_size
    ids = np.frombuffer(event.token_ids[: 4 * size], dtype=np.uint32)
    if not 1 <= size <= _LARGEST_TRIED or len(ids) < size:
        return None
    units = _units(size)
    for recipe in RECIPES:
        expected = key_of(first, recipe.published)
        for unit in units if recipe.units else [size]:
            layout = Layout(recipe, unit)
            if EngineChain(ids, layout, event.cache_salt).end() == expected:
                return layout
    return None


def _units(size: int) -> Sequence[int]:
    divisors = [size // parts for parts in range(1, size // _SMALLEST_UNIT + 1) if size % parts == 0]
    return divisors or [size]  # the largest first: most engines hash whole blocks


# vLLM


def _extra_keys(salt: str | None) -> tuple[tuple[str, str], ...] | None:
    return None if salt is None else (("cache_salt", salt),)


def _pickle_root(seed: str) -> bytes:
    return sha256(pickle.dumps(seed, protocol=_PICKLE)).digest()


def _pickle_step(parent: bytes, raw: bytes, salt: str | None) -> bytes:
    ids = tuple(memoryview(raw).cast("I"))
    return sha256(pickle.dumps((parent, ids, _extra_keys(salt)), protocol=_PICKLE)).digest()


def _cbor_root(seed: str) -> bytes:
    return sha256(_cbor_text(seed)).digest()


def _cbor_step(parent: bytes, raw: bytes, salt: str | None) -> bytes:
    ids = memoryview(raw).cast("I")
    parts = [b"\x83", _cbor_head(0x40, len(parent)), parent, _cbor_head(0x80, len(ids))]
    parts += map(_NUMBERS.__getitem__, ids)
    parts.append(b"\xf6" if salt is None else b"\x81\x82" + _cbor_text("cache_salt") + _cbor_text(salt))
    return sha256(b"".join(parts)).digest()


def _cbor_text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return _cbor_head(0x60, len(raw)) + raw


def _cbor_head(major: int, value: int) -> bytes:
    """The shortest head of a CBOR item (RFC 8949, section 4.2)."""
    if value < 24:
        return bytes((major | value,))
    for extra, size in ((24, 1), (25, 2), (26, 4)):
        if value < 1 << 8 * size:
            return bytes((major | extra,)) + value.to_bytes(size, "big")
    return bytes((major | 27,)) + value.to_bytes(8, "big")


class _Numbers(dict[int, bytes]):
    """CBOR of token ids; as many as a vocabulary has."""

    def __missing__(self, number: int) -> bytes:
        head = self[number] = _cbor_head(0, number)
        return head


_NUMBERS = _Numbers()


# SGLang


def _sglang_root(salt: str | None) -> bytes:
    if salt is None:
        return b""
    return sha256(_SGLANG_SALT + salt.encode("utf-8", "surrogatepass")).digest()


def _sglang_step(parent: bytes, raw: bytes, _salt: str | None) -> bytes:
    return sha256(parent + raw).digest()


def _vllm(name: str, seed: str, root: Callable[[str], bytes], step: _Step) -> Recipe:
    first = root(seed)
    name = name if seed == _VLLM_SEEDS[0] else f"{name} seed {seed}"
    return Recipe(name, lambda _salt: first, step, 24, units=True)


RECIPES = (
    *(_vllm("sha256", seed, _pickle_root, _pickle_step) for seed in _VLLM_SEEDS),
    Recipe("sglang", _sglang_root, _sglang_step, 0, units=False),
    *(_vllm("sha256_cbor", seed, _cbor_root, _cbor_step) for seed in _VLLM_SEEDS),
)
