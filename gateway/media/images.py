"""Images of a chat: found among its parts, fetched, measured, and made ready for workers."""

from __future__ import annotations

import asyncio
import binascii
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from gateway.engines.base import Image
from gateway.media.fetch import Fetcher, FetchError
from gateway.media.sizes import image_info

MAX_PIXELS = 100_000_000
"""A few bytes can unfold to this many times as much in the worker."""
MAX_IMAGES = 64
_AT_ONCE = 8
_KINDS = ("image_url", "image", "input_image")


class ImageError(Exception):
    """An image of a chat cannot be used; `param` is its place, the message says why."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"`{param}`: {reason}.")
        self.param = param


class _Place(NamedTuple):
    """Where a part is, and the URL in it."""

    message: int
    part: int
    url: Any

    @property
    def param(self) -> str:
        return f"messages[{self.message}].content[{self.part}]"


class ImageLoader:
    """Loads the images of one chat after another."""

    def __init__(self, fetcher: Fetcher, max_bytes: int) -> None:
        """`max_bytes` bounds all images of a chat together."""
        self._fetcher = fetcher
        self._max_bytes = max_bytes

    async def load(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[Image]]:
        """The messages with every image's size in its part, and the images in order.

        Raises ImageError with the place of an image that cannot be had, or is none.
        """
        places = list(find_images(messages))
        if len(places) > MAX_IMAGES:
            raise ImageError("messages", f"a chat has at most {MAX_IMAGES} images")
        turns = asyncio.Semaphore(_AT_ONCE)
        left = [self._max_bytes]

        async def one(place: _Place) -> tuple[Image, list[int]]:
            async with turns:
                data = await self._bytes(place, left[0])
            left[0] -= len(data)
            if left[0] < 0:
                raise _refused(place, f"the images are larger than {self._max_bytes} bytes together")
            return await asyncio.to_thread(_image, place, data)

        tasks = [asyncio.create_task(one(place)) for place in places]
        try:
            loaded = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        sized = _with_sizes(messages, places, [size for _, size in loaded])
        return sized, [image for image, _ in loaded]

    async def _bytes(self, place: _Place, max_bytes: int) -> bytes:
        if not isinstance(place.url, str) or not place.url:
            raise _refused(place, "it has no URL")
        try:
            if place.url.startswith("data:"):
                return _of_data_uri(place.url)
            return await self._fetcher.get(place.url, max(max_bytes, 0))
        except FetchError as error:
            raise _refused(place, str(error)) from None


def find_images(messages: Sequence[Mapping[str, Any]]) -> Iterator[_Place]:
    """Every part that is an image."""
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            for place, part in enumerate(content):
                if isinstance(part, dict) and part.get("type") in _KINDS:
                    yield _Place(number, place, _url(part))


def _url(part: Mapping[str, Any]) -> Any:
    found = part.get("image_url") or part.get("image")
    return found.get("url") if isinstance(found, dict) else found


def _of_data_uri(uri: str) -> bytes:
    """Raises FetchError."""
    head, comma, data = uri.partition(",")
    if not comma:
        raise FetchError("its data: URI has no data")
    if not head.endswith(";base64"):
        return unquote_to_bytes(data)
    try:
        return b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise FetchError("its data: URI is not valid base64") from None


def _image(place: _Place, data: bytes) -> tuple[Image, list[int]]:
    info = image_info(data)
    if info is None:
        raise _refused(place, "it is no PNG, JPEG, GIF or WebP image")
    if info.width * info.height > MAX_PIXELS:
        raise _refused(place, f"it has more than {MAX_PIXELS} pixels")
    uri = f"data:{info.media_type};base64,{b64encode(data).decode()}"
    return Image(uri, hashlib.sha256(data).hexdigest()), [info.width, info.height]


def _with_sizes(
    messages: Sequence[Mapping[str, Any]], places: Sequence[_Place], sizes: Sequence[list[int]]
) -> list[Any]:
    """Copies of the messages that change; the images' bytes stay behind."""
    sized = list(messages)
    for place, size in zip(places, sizes, strict=True):
        content = list(sized[place.message]["content"])
        content[place.part] = {"type": "image_url", "image_url": {"url": "data:,"}, "image_size": size}
        sized[place.message] = {**sized[place.message], "content": content}
    return sized


def _refused(place: _Place, reason: str) -> ImageError:
    return ImageError(place.param, f"the image cannot be used: {reason}")
