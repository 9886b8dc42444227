"""API keys from a file that holds their hashes, never the keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[keys]]` table of the file."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    """For logs."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Of the key, in hexadecimal."""
    models: tuple[str, ...] = ()
    """Models that it may use; all when there are none."""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    """Prompt and answer together."""
    concurrency: Positive | None = None
    """Requests at the same time."""
    priority: int | None = None
    """The lowest number, which is the highest priority, that its requests may have."""
    labels: Mapping[str, str] = {}
    """Labels that workers must have to serve its requests."""
    admin: bool = False
    """It opens the admin API."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Key] = []


class KeysError(Exception):
    """A file of keys that cannot be used. The message is one line without any of its values."""


Keys = Mapping[bytes, Key]
"""By the digest of the key."""


def read_keys(path: str) -> Keys:
    """Raises KeysError."""
    try:
        with open(path, "rb") as file:
            entries = msgspec.toml.decode(file.read(), type=_File).keys
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KeysError(f"{path}: {str(error).splitlines()[0]}") from None
    keys: dict[bytes, Key] = {}
    names: set[str] = set()
    for key in entries:
        digest = bytes.fromhex(key.sha256)
        if key.name in names or digest in keys:
            raise KeysError(f"{path}: the key {key.name!r} or its hash is there twice")
        names.add(key.name)
        keys[digest] = key
    return keys


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
