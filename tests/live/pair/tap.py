"""A TCP relay in front of a worker: shows what goes over the wire, and can hold requests back."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

from tests.live.worker import HERE

GENERATE = b"POST /inference/v1/generate "
READ_BYTES = 1 << 16
_EVENT = re.compile(rb"^data: (\{.*\})\r?$", re.MULTILINE)


class Exchange:
    """One generation as it passed; whole when its client has read the end."""

    def __init__(self) -> None:
        self.request = b""
        self.response = b""

    @property
    def body(self) -> dict[str, Any]:
        """What was asked."""
        body: dict[str, Any] = json.loads(self.request.partition(b"\r\n\r\n")[2])
        return body

    @property
    def headers(self) -> dict[str, str]:
        lines = self.request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    @property
    def token_ids(self) -> list[int]:
        """Ids that the worker streamed. Every event is in a chunk of its own."""
        events = [json.loads(event) for event in _EVENT.findall(self.response)]
        choices = [choice for event in events for choice in event.get("choices", ())]
        return [token_id for choice in choices for token_id in choice.get("token_ids") or ()]


class Tap:
    """Relays connections to `port`; what looks at the worker's health passes like the rest."""

    def __init__(self, port: int) -> None:
        self.exchanges: list[Exchange] = []
        """Generations in the order in which they were asked for."""
        self._target = (HERE, port)
        self._open = threading.Event()
        self._open.set()
        self._held = threading.Semaphore(0)
        self._listener = socket.create_server((HERE, 0))
        self.url = f"http://{HERE}:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        _thread(self._accept)

    def stop(self) -> None:
        self._open.set()
        # Closing alone would leave a thread in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @contextlib.contextmanager
    def holding(self) -> Iterator[threading.Semaphore]:
        """Keep new generations back; the semaphore is released once for each. They go on at the end."""
        self._held = threading.Semaphore(0)
        self._open.clear()
        try:
            yield self._held
        finally:
            self._open.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                worker = socket.create_connection(self._target)
            except OSError:
                _reset(client)
                continue
            for sock in (client, worker):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, worker)
            _thread(lambda link=link: self._requests(link))
            _thread(lambda link=link: _responses(link))

    def _requests(self, link: _Link) -> None:
        while data := link.read(link.client):
            if data.startswith(GENERATE):
                exchange = Exchange()
                self.exchanges.append(exchange)
                link.exchange = exchange
                if not self._open.is_set():
                    self._held.release()
                    self._open.wait()
            elif data[:5] in (b"GET /", b"POST "):
                link.exchange = None
            if link.exchange is not None:
                link.exchange.request += data
            if not link.send(link.worker, data):
                break
        link.close()


class _Link:
    """The two sides of a relayed connection."""

    def __init__(self, client: socket.socket, worker: socket.socket) -> None:
        self.client = client
        self.worker = worker
        self.exchange: Exchange | None = None

    def read(self, sock: socket.socket) -> bytes:
        try:
            return sock.recv(READ_BYTES)
        except OSError:
            return b""

    def send(self, sock: socket.socket, data: bytes) -> bool:
        try:
            sock.sendall(data)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """What one side loses, the other loses."""
        _reset(self.client)
        _reset(self.worker)


def _responses(link: _Link) -> None:
    while data := link.read(link.worker):
        if link.exchange is not None:
            link.exchange.response += data
        if not link.send(link.client, data):
            break
    link.close()


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _thread(target: Any) -> None:
    threading.Thread(target=target, daemon=True).start()
