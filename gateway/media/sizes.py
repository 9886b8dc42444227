"""Kind and size of an image from its first bytes. Pure; nothing is decoded."""

from __future__ import annotations

from typing import NamedTuple

_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Start-of-frame markers, which carry the size."""
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""


class ImageInfo(NamedTuple):
    media_type: str
    width: int
    """In pixels, as stored."""
    height: int


def image_info(data: bytes) -> ImageInfo | None:
    """None when it is no PNG, JPEG, GIF or WebP image, or is cut off before its size."""
    for read in (_png, _gif, _webp, _jpeg):
        info = read(data)
        if info is not None:
            return info if info.width > 0 and info.height > 0 else None
    return None


def _png(data: bytes) -> ImageInfo | None:
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return ImageInfo("image/png", _big(data[16:20]), _big(data[20:24]))


def _gif(data: bytes) -> ImageInfo | None:
    if data[:6] not in (b"GIF87a", b"GIF89a") or len(data) < 10:
        return None
    return ImageInfo("image/gif", _little(data[6:8]), _little(data[8:10]))


def _webp(data: bytes) -> ImageInfo | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return ImageInfo("image/webp", 1 + _little(data[24:27]), 1 + _little(data[27:30]))
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _little(data[21:25])
        return ImageInfo("image/webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return ImageInfo("image/webp", _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF)
    return None


def _jpeg(data: bytes) -> ImageInfo | None:
    """Walks the segments up to the one with the size."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _JPEG_ALONE:
            at += 1 if marker == 0xFF else 2
        elif marker in _JPEG_SIZES:
            return ImageInfo("image/jpeg", _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7]))
        else:
            at += 2 + max(_big(data[at + 2 : at + 4]), 2)
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
