"""Network namespaces, for tests that need two machines' networks."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache


def ip(*arguments: str) -> None:
    """Raises subprocess.SubprocessError."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


@cache
def why_not() -> str:
    """Why this machine gives none; empty when it does. They need root and a kernel with veth, as not every
    container has: that says nothing of the project."""
    if shutil.which("ip") is None:
        return "no `ip` command: network namespaces cannot be made"
    name, wire = f"kvgw-try-{os.getpid()}", f"kt{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", name)
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces cannot be made here: {getattr(error, 'stderr', b'') or error!r}"
    finally:
        remove(name)
    return ""


def remove(name: str) -> None:
    """The namespace and its links, if it is there."""
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=10)
