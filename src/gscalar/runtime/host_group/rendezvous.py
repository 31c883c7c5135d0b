"""How the ranks of one attempt find each other, and nobody else.

Rank 0 listens where the launcher says. Each other rank connects, listens on a port of its own, and says hello: a
digest of what names the attempt (with the supervisor's token, where there is one), its rank and its port. Rank 0
answers at once that it has heard: where there are several ports at which it may listen, the others do not wait at one
whose service keeps silent. When all have come, rank 0 welcomes them with everybody's address and a random number. Then
ranks connect to those that they exchange arrays with, and say hello with a digest of that number.

Whoever says anything else, or nothing, is let go, and does not hold up the others: a stranger, or a rank of an attempt
that is dead and does not know it. A rank that is let go, or finds nobody, tries again until its time is up.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from typing import Final

import msgspec

from gscalar.base.canonical import canonical_json
from gscalar.runtime.launch import Launch

Sockets = dict[int, socket.socket]
Place = tuple[str, int]  # host, port

_HELLO: Final = struct.Struct("!8s32sIH")  # what this is, digest, rank, port
_HELLO_MAGIC: Final = b"gscalar>"
_WELCOME: Final = struct.Struct("!8s32sI")  # what this is, digest, bytes of what follows
_WELCOME_MAGIC: Final = b"gscalar<"
_MAX_WELCOME_BYTES: Final = 1 << 24
_HEARD_WITHIN_S: Final = 5.0  # where there is another port to try
_MAX_STRANGERS: Final = 128
_CONNECT_S: Final = 5.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 0.5
_LOOK_UP_EVERY_S: Final = 0.1
# A port of our own, where the launcher's store listens at the one that it names: below the ephemeral range.
_FIRST_PORT, _NUM_PORTS, _NUM_CANDIDATES = 20_000, 12_000, 4


class Late(Exception):
    """The time is up; says who or what was missing."""


@dataclass(frozen=True, slots=True)
class Met:
    """What a rank has once all have been welcomed."""

    posts: Sockets  # to all others on rank 0, to rank 0 elsewhere
    door: Door  # where those connect that exchange arrays with this rank
    places: list[Place]  # where each rank listens
    digest: bytes  # of this meeting


def digest_of(launch: Launch) -> bytes:
    """Return what tells this attempt from every other; equal on its ranks."""
    named = [launch.identity, launch.run_id, launch.attempt, launch.world, launch.gang]
    return sha256(canonical_json(named)).digest()


def ports_of(launch: Launch, *, store_listens: bool) -> list[int]:
    """Return the ports at which rank 0 may listen; several where the launcher's own store has the one that it names."""
    assert launch.master_port is not None
    if not store_listens:
        return [launch.master_port]
    digest = digest_of(launch)
    return [
        _FIRST_PORT + int.from_bytes(digest[4 * number : 4 * number + 4], "big") % _NUM_PORTS
        for number in range(_NUM_CANDIDATES)
    ]


def meet(launch: Launch, ports: list[int], deadline_s: float) -> Met:
    """Return once all ranks have come.

    Raises:
        Late: they have not by `deadline_s` of the monotonic clock.
    """
    return _receive_all(launch, ports, deadline_s) if launch.rank == 0 else _come(launch, ports, deadline_s)


def link(launch: Launch, met: Met, peers: Collection[int], deadline_s: float, check: Callable[[], None]) -> Sockets:
    """Return sockets to the peers, who link to this rank in turn. `check` raises where going on makes no sense.

    Raises:
        Late: not by `deadline_s`.
    """
    links: Sockets = {}
    try:
        for peer in sorted(rank for rank in peers if rank < launch.rank):
            links[peer] = _connect(met.places[peer], deadline_s, check)
            links[peer].sendall(_HELLO.pack(_HELLO_MAGIC, met.digest, launch.rank, 0))
        links |= met.door.admit(met.digest, {rank for rank in peers if rank > launch.rank}, deadline_s, check)[0]
    except BaseException:
        _close(links)
        raise
    return links


class Door:
    """A listening socket and those who stand before it. Owns both until they are admitted."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[socket.socket, bytes] = {}
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """Where it is."""
        port: int = self._listener.getsockname()[1]
        return port

    def admit(
        self,
        digest: bytes,
        wanted: set[int],
        deadline_s: float,
        check: Callable[[], None] = lambda: None,
        *,
        answer: bytes = b"",
    ) -> tuple[Sockets, dict[int, int]]:
        """Return the sockets of the ranks that are wanted, and the ports that they said, once all have come.

        Each rank is sent the answer when it comes.

        Raises:
            Late: they have not.
        """
        guests: Sockets = {}
        ports: dict[int, int] = {}
        try:
            while set(guests) != wanted:
                check()
                if time.monotonic() > deadline_s:
                    raise Late(f"no word of rank {', '.join(map(str, sorted(wanted - set(guests))))}")
                for key, _ in self._selector.select(_LOOK_UP_EVERY_S):
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj is self._listener:
                        self._open()
                    elif key.fileobj in self._strangers:
                        self._listen_to(key.fileobj, digest, wanted - set(guests), answer, guests, ports)
                    else:  # a guest has nothing to say yet: it has gone, and may come again
                        for rank in [rank for rank, guest in guests.items() if guest is key.fileobj]:
                            self._let_go(guests.pop(rank))
        except BaseException:
            for guest in guests.values():
                self._let_go(guest)
            raise
        for guest in guests.values():
            self._selector.unregister(guest)
            guest.setblocking(True)
        return guests, ports

    def close(self) -> None:
        """Listen no longer, and let all go who were not admitted."""
        for stranger in list(self._strangers):
            self._let_go(stranger)
        self._selector.close()
        self._listener.close()

    def _open(self) -> None:
        try:
            stranger, _ = self._listener.accept()
        except OSError:  # it has gone again, or there are no more file descriptors
            return
        if len(self._strangers) == _MAX_STRANGERS:
            self._let_go(next(iter(self._strangers)))
        stranger.setblocking(False)
        self._strangers[stranger] = b""
        self._selector.register(stranger, selectors.EVENT_READ)

    def _listen_to(
        self,
        stranger: socket.socket,
        digest: bytes,
        wanted: set[int],
        answer: bytes,
        guests: Sockets,
        ports: dict[int, int],
    ) -> None:
        said = self._strangers[stranger]
        try:
            heard = stranger.recv(_HELLO.size - len(said))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        said += heard
        self._strangers[stranger] = said
        if heard and len(said) < _HELLO.size and said.startswith(_HELLO_MAGIC[: len(said)]):
            return
        hello = understood(said, digest)
        if hello is None or hello[0] not in wanted or not _answered(stranger, answer):
            self._let_go(stranger)
            return
        rank, ports[hello[0]] = hello
        del self._strangers[stranger]
        _tune(stranger)
        guests[rank] = stranger

    def _let_go(self, who: socket.socket) -> None:
        self._strangers.pop(who, None)
        self._selector.unregister(who)
        who.close()


def _answered(stranger: socket.socket, answer: bytes) -> bool:
    """Whether the stranger is still there and has the answer, where there is one."""
    if not answer:
        return True
    try:
        if stranger.recv(1, socket.MSG_PEEK) == b"":
            return False  # it has waited too long, and will come again
    except BlockingIOError:
        pass
    except OSError:
        return False
    try:
        return stranger.send(answer) == len(answer)
    except OSError:
        return False


def understood(said: bytes, digest: bytes) -> tuple[int, int] | None:
    """Return the rank and port of a hello, or None where it is none of this attempt."""
    if len(said) != _HELLO.size:
        return None
    magic, theirs, rank, port = _HELLO.unpack(said)
    return (rank, port) if magic == _HELLO_MAGIC and theirs == digest else None


def _receive_all(launch: Launch, ports: list[int], deadline_s: float) -> Met:
    """Rank 0's part."""
    digest = digest_of(launch)
    door = Door(_listen_at(launch, ports, deadline_s))
    try:
        posts, told_ports = door.admit(digest, set(range(1, launch.world)), deadline_s, answer=_heard_digest(digest))
    except BaseException:
        door.close()
        raise
    nonce = os.urandom(16)
    seen = {rank: (post.getpeername()[0], post.getsockname()[0]) for rank, post in posts.items()}
    # Ranks beside rank 0 may have come by loopback; to ranks elsewhere they are where rank 0 is.
    outside = next((own for _, own in seen.values() if not _is_loopback(own)), None)
    places: list[Place] = [("", 0)]
    for rank in range(1, launch.world):
        host = seen[rank][0]
        places.append((outside if outside and _is_loopback(host) else host, told_ports[rank]))
    content = msgspec.msgpack.encode((nonce, places))
    head = _WELCOME.pack(_WELCOME_MAGIC, _welcome_digest(digest), len(content))
    for post in posts.values():
        with contextlib.suppress(OSError):  # the post's reader will see that it has gone
            post.sendall(head + content)
    return Met(posts, door, places, sha256(digest + nonce).digest())


def _come(launch: Launch, ports: list[int], deadline_s: float) -> Met:
    """The other ranks' part: try until rank 0 welcomes this one."""
    assert launch.master_addr is not None
    reason: Exception = TimeoutError("not tried")
    pause_s = _FIRST_PAUSE_S
    while time.monotonic() < deadline_s:
        for port in ports:
            heard_by_s = deadline_s if len(ports) == 1 else min(deadline_s, time.monotonic() + _HEARD_WITHIN_S)
            try:
                return _say_hello(launch, (launch.master_addr, port), heard_by_s, deadline_s)
            except (OSError, ValueError) as error:
                reason = error
        time.sleep(max(0.0, min(pause_s, deadline_s - time.monotonic())))
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    raise Late(str(reason))


def _say_hello(launch: Launch, place: Place, heard_by_s: float, deadline_s: float) -> Met:
    digest = digest_of(launch)
    post = socket.create_connection(place, timeout=max(0.01, min(_CONNECT_S, deadline_s - time.monotonic())))
    door = None
    try:
        _tune(post)
        door = Door(_listen_beside(post, spread=launch.local_world < launch.world))
        post.sendall(_HELLO.pack(_HELLO_MAGIC, digest, launch.rank, door.port))
        heard = _heard_digest(digest)
        if _read(post, len(heard), heard_by_s) != heard:
            raise ValueError("who answers there is not rank 0 of this attempt")
        magic, theirs, size = _WELCOME.unpack(_read(post, _WELCOME.size, deadline_s))
        if magic != _WELCOME_MAGIC or theirs != _welcome_digest(digest) or size > _MAX_WELCOME_BYTES:
            raise ValueError("who answers there is not rank 0 of this attempt")
        nonce, places = msgspec.msgpack.decode(_read(post, size, deadline_s), type=tuple[bytes, list[Place]])
        places[0] = post.getpeername()[:2]
        return Met({0: post}, door, places, sha256(digest + nonce).digest())
    except BaseException:
        post.close()
        if door is not None:
            door.close()
        raise


def _listen_at(launch: Launch, ports: list[int], deadline_s: float) -> socket.socket:
    """Return a socket that listens where the launcher says; a port that is in use may become free."""
    assert launch.master_addr is not None
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(launch.master_addr, 0, type=socket.SOCK_STREAM)[0]
            host, everywhere = str(address[0]), _everywhere(family)
            if _is_loopback(host) and launch.local_world < launch.world:
                host = everywhere  # some systems give a host's own name a loopback address
            for port in ports:
                for each in (host, everywhere):  # the name may lead to us through a router or a service
                    with contextlib.suppress(OSError):
                        return _listen(family, (each, port))
                    if _is_loopback(host):
                        break
            raise OSError(f"nothing can listen at port {', '.join(map(str, ports))}")
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise Late(str(error)) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)


def _listen_beside(post: socket.socket, *, spread: bool) -> socket.socket:
    """Return a socket that listens on any port of the address by which this rank reached rank 0."""
    host = post.getsockname()[0]
    return _listen(post.family, (_everywhere(post.family) if spread and _is_loopback(host) else host, 0))


def _listen(family: int, place: Place) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def _connect(place: Place, deadline_s: float, check: Callable[[], None]) -> socket.socket:
    pause_s = _FIRST_PAUSE_S
    while True:
        check()
        left_s = deadline_s - time.monotonic()
        try:
            connected = socket.create_connection(place, timeout=max(0.01, min(_CONNECT_S, left_s)))
        except OSError as error:
            if left_s < 0:
                raise Late(f"{place[0]}:{place[1]}: {error}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            continue
        _tune(connected)
        return connected


def _read(reading: socket.socket, size: int, deadline_s: float) -> bytes:
    data = b""
    while len(data) < size:
        reading.settimeout(max(0.01, deadline_s - time.monotonic()))
        got = reading.recv(size - len(data))
        if not got:
            raise OSError("the connection was closed; is another attempt still there?")
        data += got
    return data


def _tune(connected: socket.socket) -> None:
    """Send at once, and notice within about a minute a host that has gone."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _welcome_digest(digest: bytes) -> bytes:
    return sha256(b"welcome" + digest).digest()


def _heard_digest(digest: bytes) -> bytes:
    return sha256(b"heard" + digest).digest()


def _everywhere(family: int) -> str:
    return "::" if family == socket.AF_INET6 else "0.0.0.0"


def _is_loopback(host: str) -> bool:
    return ip_address(host.partition("%")[0]).is_loopback


def _close(sockets: Sockets) -> None:
    for each in sockets.values():
        each.close()
