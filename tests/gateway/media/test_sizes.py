"""Sizes from the first bytes of images."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.media.sizes import ImageInfo, image_info


def png(width: int, height: int) -> bytes:
    """A whole, black image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" * (1 + 3 * width)) * height)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(width: int, height: int, frame: int = 0xC0) -> bytes:
    segments = b"\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
    segments += (
        b"\xff\xe1" + struct.pack(">H", 2 + 300) + b"\xff\xc0" * 150
    )  # what looks like a frame in a comment
    segments += b"\xff\xc4" + struct.pack(">H", 4) + b"\0\0"
    size = struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\0"
    return b"\xff\xd8" + segments + b"\xff\xff" + bytes([0xFF, frame]) + size + b"\xff\xd9"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def webp(kind: bytes, width: int, height: int) -> bytes:
    if kind == b"VP8X":
        body = b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif kind == b"VP8L":
        body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + b"\0" * 8
    else:
        body = b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF" + struct.pack("<I", 22) + b"WEBP" + kind + struct.pack("<I", len(body)) + body


MADE = {
    "png": (lambda w, h: png(w, h), "image/png"),
    "gif": (gif, "image/gif"),
    "jpeg": (jpeg, "image/jpeg"),
    "progressive jpeg": (lambda w, h: jpeg(w, h, 0xC2), "image/jpeg"),
    "webp": (lambda w, h: webp(b"VP8 ", w, h), "image/webp"),
    "lossless webp": (lambda w, h: webp(b"VP8L", w, h), "image/webp"),
    "extended webp": (lambda w, h: webp(b"VP8X", w, h), "image/webp"),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (640, 480), (300, 4097)])
def test_each_format_says_its_size(kind: str, width: int, height: int) -> None:
    make, media_type = MADE[kind]
    assert image_info(make(width, height)) == ImageInfo(media_type, width, height)


@pytest.mark.parametrize("kind", MADE)
def test_an_image_that_is_cut_off_has_its_size_or_none(kind: str) -> None:
    whole = MADE[kind][0](640, 480)
    found = {image_info(whole[:end]) for end in range(len(whole))}
    assert {info[1:] for info in found if info} <= {(640, 480)}
    assert None in found


@given(st.binary(max_size=80))
def test_any_bytes_are_an_image_or_none(data: bytes) -> None:
    for start in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 "):
        info = image_info(start + data)
        assert info is None or (info.width > 0 and info.height > 0)


@pytest.mark.parametrize(
    "data", [png(1, 1).replace(b"IHDR", b"IHDX", 1), gif(0, 5), jpeg(5, 0), b"<svg/>", b""]
)
def test_what_has_no_size_is_no_image(data: bytes) -> None:
    assert image_info(data) is None
