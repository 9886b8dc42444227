"""The router's index in a file, so that a gateway that restarts knows at once what the workers hold."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from router.messages import WorkerKey
from router.selector import Router
from router.snapshot import Position, Snapshot, SnapshotError, decode

logger = logging.getLogger(__name__)

Positions = Callable[[], Mapping[WorkerKey, Callable[[], Position | None]]]


def read_snapshot(path: str | None) -> Snapshot | None:
    """None when there is none that can be used; why not is logged."""
    if path is None:
        return None
    try:
        return decode(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, SnapshotError) as error:
        logger.warning("the snapshot %s is not used: %s", path, error)
        return None


class Snapshots:
    """Writes the file now and then, and at the end."""

    def __init__(self, path: str, seconds: float, router: Router, positions: Positions) -> None:
        self._path = Path(path)
        self._seconds = seconds
        self._router = router
        self._positions = positions

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.save()

    async def save(self) -> None:
        """One rank at a time, with the event loop free between; a failure is logged."""
        parts = []
        for part in self._router.save(self._positions()):
            parts.append(part)
            await asyncio.sleep(0)
        try:
            await asyncio.to_thread(self._write, parts)
        except OSError as error:
            logger.warning("the snapshot %s was not written: %s", self._path, error)

    def _write(self, parts: list[bytes]) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(parts)
        os.replace(fresh, self._path)
