"""Every rank learns how its wall clock stands to rank 0's, by small UDP messages beside the training.

Rank 0 answers in a thread of its own, on the address of the rendezvous (loopback where that is
loopback). The others ask from a thread of theirs: a burst at the start, then one every ten seconds or, in
a large world, so seldom that rank 0 answers at most about a hundred a second. Where to ask, and a
random token without which nobody is answered, come from rank 0 by one broadcast. What is learned is
recorded as `Clock` events; `gscalar.observation.clocks` has the arithmetic.

The kernel stamps a message when it arrives, so that a training that holds Python's lock does not lengthen
the round trip. Where it does not stamp, the time after receiving counts.

Nothing here can stop or delay a training: the threads are daemons, a lost message is asked again, and where
nobody answers (a firewall) one `Note` says so.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from gscalar.model.events import Clock, Event, Note
from gscalar.model.sink import Sink
from gscalar.observation.clocks import ClockEstimator, Ping, is_news
from gscalar.observation.threads import start_thread
from gscalar.runtime.framework import Group
from gscalar.runtime.launch import Launch

NowNs = Callable[[], int]

_NOBODY: Final = b"nobody"  # broadcast where rank 0 cannot answer
_QUESTION: Final = struct.Struct("<16sQ")  # token, number
_ANSWER: Final = struct.Struct("<16sQqq")  # token, number, arrived, answered
_TIMEOUT_S: Final = 0.5
_PINGS_A_BURST: Final = 8
_GAP_S: Final = 0.005
_EVERY_S: Final = 10.0
_S_PER_RANK: Final = 0.08  # between two bursts: rank 0 then answers about 100 questions a second
_BURSTS_UNANSWERED: Final = 3
# Linux on 64 bits; Python names neither.
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("@qq")
_STAMP_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size)
_OLDEST_STAMP_NS: Final = 10 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """Where rank 0 answers whoever knows the token. Without a host it is the rendezvous's."""

    host: str
    port: int
    family: int
    token: str

    def packed(self) -> bytes:
        """Return it as it is broadcast."""
        return json.dumps([self.host, self.port, self.family, self.token]).encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> Invitation:
        """Return what `packed` packed."""
        host, port, family, token = json.loads(packed)
        return cls(host=host, port=port, family=family, token=token)


def start_clock_sync(
    group: Group, launch: Launch, sink: Sink, *, now_ns: NowNs = time.time_ns, every_s: float = _EVERY_S
) -> Callable[[], None]:
    """Begin, on every rank at the same place of the program; return how to stop.

    This is one broadcast; all else happens in a thread. A world of one has nothing to compare.
    """
    if launch.world == 1:
        return lambda: None
    if launch.rank == 0:
        try:
            answerer = Answerer(launch, now_ns)
        except Exception as error:  # noqa: BLE001 - the other ranks wait for the broadcast, whatever this is
            text = f"the ranks' clocks are not compared: no address to answer at ({error})"
            sink.emit(Note(time.time_ns(), "warning", "clocks-unknown", text))
            group.broadcast(_NOBODY)
            return lambda: None
        _start(answerer.run)
        group.broadcast(answerer.invitation.packed())
        return answerer.stop
    packed = group.broadcast(b"")
    if packed == _NOBODY:
        return lambda: None
    asker = Asker(Invitation.unpacked(packed), launch, sink, now_ns)
    pause_s = max(every_s, _S_PER_RANK * launch.world)
    _start(lambda: asker.run(pause_s))
    return asker.stop


def _start(work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the system gives no more threads: go without
        start_thread(work, "gscalar-clock")


class Answerer:
    """Rank 0's socket and the thread that answers at it.

    Raises:
        OSError: there is no address to listen at.
    """

    def __init__(self, launch: Launch, now_ns: NowNs = time.time_ns) -> None:
        self._now_ns = now_ns
        self._token = secrets.token_bytes(16)
        self._stopped = threading.Event()
        self._socket, host = _listen(launch)
        self.invitation = Invitation(
            host=host,
            port=self._socket.getsockname()[1],
            family=int(self._socket.family),
            token=self._token.hex(),
        )

    def run(self) -> None:
        """Answer until stopped."""
        with self._socket:
            while not self._stopped.is_set():
                try:
                    self._answer()
                except (TimeoutError, struct.error):
                    pass  # nobody asked for a second, or a stranger did
                except OSError:
                    self._stopped.wait(0.1)  # such as a network that is down: not over and over

    def stop(self) -> None:
        """End the thread, within a second."""
        self._stopped.set()

    def _answer(self) -> None:
        message, sender, arrived_ns = _receive(self._socket, self._now_ns)
        token, number = _QUESTION.unpack(message)
        if secrets.compare_digest(token, self._token) and not self._stopped.is_set():
            self._socket.sendto(_ANSWER.pack(token, number, arrived_ns, self._now_ns()), sender)


class Asker:
    """Another rank's socket, its estimate, and the thread that asks."""

    def __init__(self, invitation: Invitation, launch: Launch, sink: Sink, now_ns: NowNs = time.time_ns) -> None:
        self._invitation = invitation
        self._rank = launch.rank
        self._host = invitation.host or launch.master_addr or ""
        self._sink = sink
        self._now_ns = now_ns
        self._token = bytes.fromhex(invitation.token)
        self._number = 0
        self._estimator = ClockEstimator()
        self._reported: Clock | None = None
        self._stopped = threading.Event()
        self._writing = threading.Lock()

    def run(self, pause_s: float) -> None:
        """Ask until stopped."""
        # All ranks start at once, and rank 0's socket holds only so many questions.
        if self._stopped.wait(min(1.0, 0.001 * self._rank)):
            return
        num_unanswered = 0
        while True:
            try:
                answered = self._ask_burst()
            except Exception:  # noqa: BLE001 - the thread's boundary; such as a name that does not resolve just now
                answered = False
            num_unanswered = 0 if answered else num_unanswered + 1
            if num_unanswered == _BURSTS_UNANSWERED and self._reported is None:
                self._tell_unanswered()
            if self._stopped.wait(pause_s):
                return

    def stop(self) -> None:
        """Write nothing from now on, and end the thread within a second."""
        with self._writing:
            self._stopped.set()

    def _ask_burst(self) -> bool:
        """Ask some times and record what is news; return whether anybody answered."""
        family, _, _, _, address = socket.getaddrinfo(
            self._host, self._invitation.port, self._invitation.family, socket.SOCK_DGRAM
        )[0]
        pings: list[Ping] = []
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            _stamp_arrivals(asking)
            for _ in range(_PINGS_A_BURST):
                ping = self._ask(asking, address)
                if ping is not None:
                    pings.append(ping)
                if self._stopped.wait(_GAP_S):
                    break
        if not pings:
            return False
        moved = self._estimator.add(pings)
        estimate = self._estimator.estimate(self._now_ns())
        if estimate is not None and (moved or is_news(self._reported, estimate)):
            self._reported = estimate
            self._emit(estimate)
        return True

    def _ask(self, asking: socket.socket, address: Any) -> Ping | None:
        self._number += 1
        begun_ns = time.monotonic_ns()
        asked_ns = self._now_ns()
        asking.sendto(_QUESTION.pack(self._token, self._number), address)
        while True:
            left_s = _TIMEOUT_S - (time.monotonic_ns() - begun_ns) / 1e9
            if left_s <= 0:
                return None
            asking.settimeout(left_s)
            try:
                message, _, received_ns = _receive(asking, self._now_ns)
                token, number, arrived_ns, answered_ns = _ANSWER.unpack(message)
            except (OSError, struct.error):
                continue
            if token == self._token and number == self._number:
                break
        ping = Ping(asked_ns, arrived_ns, answered_ns, received_ns)
        # Where a clock was set in between, the stamps do not belong together.
        taken_ns = time.monotonic_ns() - begun_ns
        return ping if 0 <= ping.round_trip_ns <= taken_ns + _GAP_S * 1e9 else None

    def _tell_unanswered(self) -> None:
        where = f"{self._host}:{self._invitation.port}"
        text = f"the clock of rank {self._rank} is not compared with rank 0's: nobody answered at {where} (UDP)"
        self._emit(Note(time.time_ns(), "warning", "clocks-unknown", text))

    def _emit(self, event: Event) -> None:
        with self._writing:
            if not self._stopped.is_set():
                self._sink.emit(event)


def _listen(launch: Launch) -> tuple[socket.socket, str]:
    """Return a bound socket, and the host to ask at where that is not the rendezvous's own name."""
    assert launch.master_addr is not None
    family, _, _, _, address = socket.getaddrinfo(launch.master_addr, 0, type=socket.SOCK_DGRAM)[0]
    host = str(address[0])
    loopback = ip_address(host.partition("%")[0]).is_loopback
    everywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"
    if loopback and launch.local_world < launch.world:
        # Some systems give a host's own name a loopback address; the others know it by another one.
        loopback, host = False, everywhere
    listening = socket.socket(family, socket.SOCK_DGRAM)
    try:
        try:
            listening.bind((host, 0))
        except OSError:
            listening.bind((everywhere, 0))  # the name leads to us through a router or a service
        listening.settimeout(1.0)
        _stamp_arrivals(listening)
    except OSError:
        listening.close()
        raise
    return listening, host if loopback else ""


def _stamp_arrivals(reading: socket.socket) -> None:
    with contextlib.suppress(OSError):
        reading.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def _receive(reading: socket.socket, now_ns: NowNs) -> tuple[bytes, Any, int]:
    """Return a message, its sender and when it arrived by `now_ns`.

    The kernel's stamp says how long ago that was. An arrival told too late only lengthens the round trip,
    which stays true; so the time that passes between the two readings here must count as later.
    """
    message, ancillary, _, sender = reading.recvmsg(_ANSWER.size + 1, _STAMP_BYTES)
    kernel_now_ns = time.time_ns()
    arrived_ns = now_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            age_ns = kernel_now_ns - (seconds * 10**9 + nanoseconds)
            if 0 <= age_ns < _OLDEST_STAMP_NS:  # else the clock was set meanwhile
                arrived_ns -= age_ns
    return message, sender, arrived_ns
