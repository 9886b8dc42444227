"""What moves blocks between two arenas: the interface, and what can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simulator.kv.metadata import AgentMetadata

Indices = npt.NDArray[np.int32]
OnNotification = Callable[[bytes], None]


class TransferError(Exception):
    """A peer's blocks could not be read, or the peer could not be told."""


class Transfer(NamedTuple):
    """What one READ did."""

    nbytes: int
    descriptors: int
    post_seconds: float
    """Until the call that starts it came back."""
    seconds: float
    """Until the bytes were there."""


class Peer(NamedTuple):
    """A worker that was shaken hands with."""

    engine_id: str
    endpoint: str
    """Its side channel."""
    metadata: AgentMetadata
    handle: Any
    """The transport's own."""


class Transport(Protocol):
    """Reads blocks of peers into this worker's arena. All methods are called on the loop."""

    label: str
    """"nixl" or "inline"."""

    def describe(self) -> str:
        """What carries the bytes, as far as that is known."""

    async def start(self, on_notification: OnNotification) -> bytes:
        """Register the arena; the blob that peers need. `on_notification` is called on the loop."""

    async def connect(self, endpoint: str, metadata: AgentMetadata) -> Peer:
        """Raises TransferError."""

    async def read(self, peer: Peer, local: Indices, remote: Indices, notification: bytes) -> Transfer:
        """One READ of the peer's blocks `remote` into `local`, then tell the peer. Raises TransferError."""

    async def notify(self, peer: Peer, message: bytes) -> None:
        """Raises TransferError."""

    def forget(self, peer: Peer) -> None:
        """The peer is gone or has restarted."""

    async def close(self) -> None:
        """Let go of memory and threads."""
