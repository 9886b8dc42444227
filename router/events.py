"""KV events off the wire: every vLLM and SGLang layout to one typed form.

A batch is the msgpack array [ts, events, data_parallel_rank]. An event is a map with a "type" key (vLLM,
SGLang, Dynamo's mocker) or, from older engines, a positional array with the type first. One typed decode
takes the first kind; whatever it refuses is looked at event by event, so that one unknown type costs only
itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from router.tiers import MEDIA, Tier

EngineHash = int | bytes
"""A block's hash as the engine publishes it: unsigned or signed 64 bits, or the whole digest."""

_NO_TOKENS = msgspec.Raw(b"\x90")
_ONE_EVENT = b"\x91"


class MalformedEventError(ValueError):
    """A payload, or an event in it, is not one that vLLM or SGLang sends."""


class GroupKind(Enum):
    """What a KV cache group asks of a prefix before it counts as cached."""

    ATTENTION = "attention"
    """Every block of the prefix."""
    STATE = "state"
    """The state at the prefix's end (mamba, KDA), or the blocks of its last window."""
    IGNORED = "ignored"
    """Nothing that a prefix hit depends on (cross attention, encoders)."""


_KINDS = {
    None: GroupKind.ATTENTION,
    "unknown": GroupKind.ATTENTION,
    "full_attention": GroupKind.ATTENTION,
    "mla_attention": GroupKind.ATTENTION,
    "sink_full_attention": GroupKind.ATTENTION,
    "mamba": GroupKind.STATE,
    "sliding_window": GroupKind.STATE,
    "sliding_window_mla": GroupKind.STATE,
}
_ATTENTION, _STATE, _IGNORED = GroupKind  # names that are quicker to look up


class BlockStored(msgspec.Struct, kw_only=True):
    """Blocks that a group of a worker now holds."""

    block_hashes: Sequence[EngineHash]
    parent: EngineHash | None
    """The hash before the token range; None at a prompt's start."""
    token_ids: bytes
    """The range's tokens as little-endian uint32. Empty for state groups: theirs cover more than the listed
    blocks, so those are placed by hash value."""
    block_size: int
    group: int = 0
    kind: GroupKind = GroupKind.ATTENTION
    window: int = 0
    """Tokens of a sliding window; 0 for a state that only counts at its own position."""
    tier: Tier | None = Tier.DEVICE
    """None for what belongs to no worker."""
    more: bool = False
    """Whether this is a part of a store of which more follows."""
    cache_salt: str | None = None
    lora: str | None = None
    extras: dict[int, bytes] | None = None
    """Content beside tokens, by block position."""
    lookahead: int = 0
    """Tokens after each block that its hash covers, too."""
    following: bytes = b""
    """These, for each block, as little-endian uint32."""


class BlockRemoved(msgspec.Struct, kw_only=True):
    """One copy of each of these blocks is gone."""

    block_hashes: Sequence[EngineHash]
    group: int = 0
    tier: Tier | None = Tier.DEVICE


class AllBlocksCleared(msgspec.Struct):
    """The worker's prefix cache is empty."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvBatch(msgspec.Struct):
    """One published message."""

    timestamp: float
    """Seconds since the epoch, by the worker's clock."""
    events: list[KvEvent]
    dp_rank: int | None = None
    unknown: int = 0
    """Events of types that are not known here."""


def decode_batch(payload: bytes) -> KvBatch:
    """Decode one payload; raises MalformedEventError."""
    try:
        batch = (_MAPS if _has_states(payload) else _MAPS_AT_ONCE).decode(payload)
        return KvBatch(batch.ts, [_typed(event) for event in batch.events], batch.data_parallel_rank)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _decode_mixed(payload)


def _has_states(payload: bytes) -> bool:
    """A guess: tokens of state groups are not looked at, and to skip them is faster than to read them.

    A hybrid engine publishes several groups' events together, after the array's head and a double.
    """
    if payload[10:11] == _ONE_EVENT:
        return False
    return b"mamba" in payload or b"sliding_window" in payload


class _Known(msgspec.Struct):
    """What is read of a store beside its tokens."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None = None
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    cache_salt: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class _Stored(_Known, tag="BlockStored"):
    token_ids: msgspec.Raw = _NO_TOKENS


class _StoredAtOnce(_Known, tag="BlockStored"):
    token_ids: list[int] = []


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _PositionalStored(msgspec.Struct, tag="BlockStored", array_like=True):
    """Fields were appended over time; Dynamo's build has one more (`mm_infos`) before the group."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None = None
    token_ids: msgspec.Raw = _NO_TOKENS
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    tail0: Any = None
    tail1: Any = None
    tail2: Any = None
    tail3: Any = None


class _PositionalRemoved(msgspec.Struct, tag="BlockRemoved", array_like=True):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _PositionalCleared(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
    pass


_Wire = _Stored | _Removed | _Cleared
_WireAtOnce = _StoredAtOnce | _Removed | _Cleared
_Positional = _PositionalStored | _PositionalRemoved | _PositionalCleared


class _MapBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Wire]
    data_parallel_rank: int | None = None


class _MapBatchAtOnce(msgspec.Struct, array_like=True):
    ts: float
    events: list[_WireAtOnce]
    data_parallel_rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_MAPS = msgspec.msgpack.Decoder(_MapBatch)
_MAPS_AT_ONCE = msgspec.msgpack.Decoder(_MapBatchAtOnce)
_RAWS = msgspec.msgpack.Decoder(_RawBatch)
_MAP_EVENT = msgspec.msgpack.Decoder(_Wire)
_POSITIONAL_EVENT = msgspec.msgpack.Decoder(_Positional)
_INTS = msgspec.msgpack.Decoder(list[int])
_BIGRAMS = msgspec.msgpack.Decoder(list[tuple[int, int]])
_KNOWN_TYPES = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


def _decode_mixed(payload: bytes) -> KvBatch:
    try:
        raw = _RAWS.decode(payload)
        events = [_decode_event(bytes(event)) for event in raw.events]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedEventError(f"KV event payload of {len(payload)} bytes: {error}") from error
    known = [event for event in events if event is not None]
    return KvBatch(raw.ts, known, raw.data_parallel_rank, len(events) - len(known))


def _decode_event(raw: bytes) -> KvEvent | None:
    """One event of either layout; None when its type is unknown."""
    is_map = raw[:1] in (b"\xde", b"\xdf") or 0x80 <= raw[0] <= 0x8F
    try:
        wire = _MAP_EVENT.decode(raw) if is_map else _by_name(_POSITIONAL_EVENT.decode(raw))
    except msgspec.ValidationError:
        if _type_of(raw) in _KNOWN_TYPES:
            raise
        return None
    return _typed(wire)


def _type_of(raw: bytes) -> str:
    event = msgspec.msgpack.decode(raw)
    tag = None
    if isinstance(event, dict):
        tag = event.get("type")
    elif isinstance(event, list) and event:
        tag = event[0]
    if not isinstance(tag, str):
        raise MalformedEventError("an event without a type")
    return tag


def _by_name(event: _Positional) -> _Wire:
    if isinstance(event, _PositionalRemoved):
        return _Removed(event.block_hashes, event.medium, event.group_idx)
    if isinstance(event, _PositionalCleared):
        return _Cleared()
    group, kind, window = _group_tail([event.tail0, event.tail1, event.tail2, event.tail3])
    return _Stored(
        block_hashes=event.block_hashes,
        parent_block_hash=event.parent_block_hash,
        token_ids=event.token_ids,
        block_size=event.block_size,
        lora_id=event.lora_id,
        medium=event.medium,
        lora_name=event.lora_name,
        extra_keys=event.extra_keys,
        group_idx=group,
        kv_cache_spec_kind=kind,
        kv_cache_spec_sliding_window=window,
    )


def _group_tail(tail: list[Any]) -> tuple[int | None, str | None, int | None]:
    has_mm_infos = isinstance(tail[0], list) or (tail[0] is None and isinstance(tail[1], int))
    group, kind, window = tail[1:4] if has_mm_infos else tail[0:3]
    return (
        group if isinstance(group, int) else None,
        kind if isinstance(kind, str) else None,
        window if isinstance(window, int) else None,
    )


def _typed(event: _Wire | _WireAtOnce) -> KvEvent:
    if isinstance(event, _Removed):
        return BlockRemoved(block_hashes=event.block_hashes, group=event.group_idx or 0, tier=_tier(event))
    if isinstance(event, _Cleared):
        return AllBlocksCleared()
    kind = _KINDS.get(event.kv_cache_spec_kind, _IGNORED)
    salt, lora, extras = _namespace(event)
    token_ids, following = b"", b""
    if kind is _ATTENTION:
        token_ids, following = _token_bytes(event.token_ids, event.block_size)
        if event.lookahead_token_ids:
            following = _looked_ahead(event)
    return BlockStored(
        block_hashes=event.block_hashes,
        parent=event.parent_block_hash,
        token_ids=token_ids,
        block_size=event.block_size,
        group=event.group_idx or 0,
        kind=kind,
        window=(event.kv_cache_spec_sliding_window or 0) if kind is _STATE else 0,
        tier=_tier(event),
        cache_salt=salt,
        lora=lora,
        extras=extras,
        lookahead=len(following) // (4 * len(event.block_hashes)) if following else 0,
        following=following,
    )


def _tier(event: _Known | _Removed) -> Tier | None:
    return None if event.locality == "REMOTE" else MEDIA.get(event.medium)


def _token_bytes(raw: msgspec.Raw | list[int], block_size: int) -> tuple[bytes, bytes]:
    """A range's tokens, and where its blocks are of overlapping pairs (EAGLE) the token after each block."""
    if isinstance(raw, list):
        return _uint32(raw), b""
    try:
        return _uint32(_INTS.decode(raw)), b""
    except msgspec.ValidationError:
        pairs = _BIGRAMS.decode(raw)
    if block_size < 1 or len(pairs) % block_size:
        raise MalformedEventError(f"{len(pairs)} pairs are no whole blocks of {block_size}")
    return _uint32([pair[0] for pair in pairs]), _uint32(
        [pair[1] for pair in pairs[block_size - 1 :: block_size]]
    )


def _looked_ahead(event: _Known) -> bytes:
    rows = event.lookahead_token_ids or []
    if len(rows) != len(event.block_hashes) or len({len(row) for row in rows}) != 1:
        raise MalformedEventError("lookahead_token_ids are not as many for each block")
    return _uint32([token for row in rows for token in row])


def _uint32(ids: list[int]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except OverflowError as error:
        raise MalformedEventError("a token id is not a uint32") from error


def _namespace(event: _Known) -> tuple[str | None, str | None, dict[int, bytes] | None]:
    """Cache salt, adapter, and per block what else its content hash covers.

    vLLM lists its extra keys untagged, the adapter's name first; a bare string that is left in a prompt's
    first block is the cache salt. SGLang has a field for the salt.
    """
    lora = event.lora_name
    if lora is None and event.lora_id is not None:
        lora = f"id:{event.lora_id}"
    salt = event.cache_salt
    if not event.extra_keys or not any(event.extra_keys):
        return salt, lora, None
    extras: dict[int, bytes] = {}
    for position, keys in enumerate(event.extra_keys):
        if not keys:
            continue
        if not isinstance(keys, list):
            raise MalformedEventError("extra_keys of a block are not a list")
        left = list(keys)
        if event.lora_name is not None and event.lora_name in left:
            left.remove(event.lora_name)
        if position == 0 and event.parent_block_hash is None:
            for key in left:
                if isinstance(key, str):
                    salt = key
                    left.remove(key)
                    break
        if left:
            extras[position] = msgspec.msgpack.encode(left)
    return salt, lora, extras or None
