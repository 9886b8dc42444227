"""Links that a probe measured, from its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from fabric.results import LinksFile
from gateway.config import StartupError
from gateway.handoff.links import LinkCost

MIN_BANDWIDTH = 1e6
"""Bytes a second; less is no measurement."""


def read_links(path: str) -> Mapping[tuple[str, str], LinkCost]:
    """By names of prefill and decode worker. Raises StartupError."""
    try:
        read = msgspec.json.decode(Path(path).read_bytes(), type=LinksFile)
    except OSError as error:
        raise StartupError(f"measured_links: cannot read {path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise StartupError(f"measured_links: {path}: {error}") from None
    return {
        (link.prefill, link.decode): LinkCost(link.t0, link.descriptor, link.bandwidth)
        for link in read.links
        if link.bandwidth >= MIN_BANDWIDTH
    }
