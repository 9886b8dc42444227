"""Data-parallel ranks: engines that share one HTTP server, each with its own pool and its own publisher."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from simulator.connector import Connector
from simulator.engine import Engine
from simulator.errors import ApiError
from simulator.faults import Faults
from simulator.publisher import EventPublisher
from simulator.settings import SimulatorSettings


class Rank:
    """One engine with its publisher and its connector."""

    def __init__(self, settings: SimulatorSettings, number: int, faults: Faults) -> None:
        own = _of_rank(settings, number)
        self.publisher = EventPublisher(own.kv_topic, own.kv_buffer_steps, number)
        self.publisher.gate = faults.send_events
        self.engine = Engine(own, self.publisher.publish, faults)
        self.connector = Connector(own, self.engine, faults, number if settings.dp_size > 1 else None)
        self._settings = own

    @property
    def load(self) -> int:
        """Requests that it has."""
        return self.engine.counters.running + self.engine.counters.waiting

    def start(self) -> None:
        """Open the publisher's sockets. Raises zmq.ZMQError."""
        self.publisher.start(
            self._settings.host, self._settings.kv_events_port, self._settings.kv_replay_port
        )


class Ranks:
    """All ranks of a worker, in order, and the faults that they share."""

    def __init__(self, settings: SimulatorSettings, exit_process: Callable[[int], None] = os._exit) -> None:
        """`exit_process` ends the process at once with a status: when an engine dies, or a fault wants it."""
        self.faults = Faults(exit_process)
        self._ranks = [Rank(settings, number, self.faults) for number in range(settings.dp_size)]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, number: int) -> Rank:
        return self._ranks[number]

    def start(self) -> None:
        """Open the publishers' sockets; the connectors start with the application. Raises zmq.ZMQError."""
        for rank in self._ranks:
            rank.start()

    async def close(self) -> None:
        """Close them."""
        for rank in self._ranks:
            await rank.publisher.close()

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


def _of_rank(settings: SimulatorSettings, number: int) -> SimulatorSettings:
    """Settings of one rank: its ports are the first rank's plus its number."""
    names = ("kv_events_port", "kv_replay_port", "side_channel_port")
    ports = {name: getattr(settings, name) for name in names}
    return msgspec.structs.replace(settings, **{name: port + number for name, port in ports.items() if port})
