"""Data-parallel ranks: engines that share one HTTP server, each with its own pool and its own publisher."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.engine import Engine
from simulator.errors import ApiError
from simulator.publisher import EventPublisher
from simulator.settings import SimulatorSettings


class Rank:
    """One engine and its publisher."""

    def __init__(self, settings: SimulatorSettings, number: int) -> None:
        self.publisher = EventPublisher(settings.kv_topic, settings.kv_buffer_steps, number)
        self.engine = Engine(settings, self.publisher.publish)
        self._settings = settings
        self._number = number

    @property
    def load(self) -> int:
        """Requests that it has."""
        return self.engine.counters.running + self.engine.counters.waiting

    async def start(self) -> None:
        """Open the rank's sockets, on the first rank's ports plus its number. Raises zmq.ZMQError."""
        settings = self._settings
        self.publisher.start(
            settings.host, self._port(settings.kv_events_port), self._port(settings.kv_replay_port)
        )

    async def close(self) -> None:
        """Close them."""
        await self.publisher.close()

    def _port(self, base: int) -> int:
        return base + self._number if base else 0


class Ranks:
    """All ranks of a worker, in order."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._ranks = [Rank(settings, number) for number in range(settings.dp_size)]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, number: int) -> Rank:
        return self._ranks[number]

    async def start(self) -> None:
        """Open all sockets. Raises zmq.ZMQError: a port is taken."""
        for rank in self._ranks:
            await rank.start()

    async def close(self) -> None:
        """Close what was opened."""
        for rank in self._ranks:
            await rank.close()

    def choose(self, header: str | None) -> Rank:
        """The rank that a request names, else the least loaded. What is no number names none, as in vLLM.

        Raises ApiError for a number that no rank has.
        """
        try:
            number = None if header is None else int(header)
        except ValueError:
            number = None
        if number is None:
            return min(self._ranks, key=lambda rank: rank.load)
        if not 0 <= number < len(self._ranks):
            raise ApiError(f"data_parallel_rank {number} is out of range [0, {len(self._ranks)}).")
        return self._ranks[number]
