"""A port for a new rendezvous.

A port below the kernel's ephemeral range is taken, so that no outgoing connection can occupy it in
the seconds before rank 0 listens; it is drawn at random, so that two supervisors that look at the
same moment rarely choose the same one (about 1 in 10,000; the attempt then fails to bind, which is
classed `lost` and retried on another port).
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 15000
_TRIES = 200


def pick_port(avoid: frozenset[int] = frozenset(), *, ipv4_range: Path | None = None) -> int:
    """Return a TCP port that is free on this machine now and not in `avoid`."""
    chooser = random.SystemRandom()  # workers seed `random`; the port must not repeat with the seed
    highest = max(_LOWEST + 1000, min(_first_ephemeral(ipv4_range), 61000))
    for _ in range(_TRIES):
        port = chooser.randrange(_LOWEST, highest)
        if port not in avoid and _is_free(port):
            return port
    return _ask_kernel()


def _first_ephemeral(ipv4_range: Path | None) -> int:
    try:
        return int((ipv4_range or Path("/proc/sys/net/ipv4/ip_local_port_range")).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As torch's store does: a port whose last connections are in TIME_WAIT can be listened on.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _ask_kernel() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
