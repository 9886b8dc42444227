"""Ports for servers that bind them only minutes after they were chosen."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below the range from which the system gives ports to whoever asks, and to outgoing connections."""


def quiet_ports(count: int) -> list[int]:
    """Ports that nobody has and that the system gives to nobody, all different."""
    ports: list[int] = []
    for port in random.sample(range(FIRST, LAST), LAST - FIRST):
        if len(ports) == count:
            break
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    return ports
