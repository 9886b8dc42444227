"""A slow front for a server: starts it on another port and relays bytes to it, burning CPU for each read.

usage: python handicap.py BURN_MICROSECONDS PORT COMMAND...      COMMAND serves on the port it reads as {port}
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from loadtests.processes import free_ports


def burn(microseconds: int) -> None:
    """Real CPU time of this process."""
    until = time.thread_time_ns() + microseconds * 1000
    while time.thread_time_ns() < until:
        pass


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, microseconds: int) -> None:
    while data := await reader.read(65536):
        burn(microseconds)
        writer.write(data)
    writer.close()


async def serve(port: int, upstream: int, microseconds: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream)
        except OSError:
            writer.close()
            return
        ways = relay(reader, up_writer, microseconds), relay(up_reader, writer, microseconds)
        await asyncio.gather(*ways, return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    microseconds, port, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    (upstream,) = free_ports(1)
    subprocess.Popen([part.replace("{port}", str(upstream)) for part in command])
    asyncio.run(serve(port, upstream, microseconds))


if __name__ == "__main__":
    main()
