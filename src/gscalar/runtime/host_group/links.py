"""This rank's sockets to other ranks, over which arrays and the signals around them go."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from gscalar.runtime.host_group.roundtable import Failure

_SIGNAL: Final = struct.Struct("<IQ")  # what is exchanged, how many signals before
_READ, _WRITE = select.POLLIN, select.POLLOUT


class Broken(Exception):
    """A link is of no more use, as the failure says."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Links:
    """Sockets to the ranks that this one exchanges arrays with. Owns them."""

    def __init__(self, sockets: Mapping[int, socket.socket], timeout_s: float) -> None:
        self._sockets = dict(sockets)
        self._timeout_s = timeout_s
        self._num_signals = 0
        for each in self._sockets.values():
            each.setblocking(False)

    def compare(self, tag: int, *, to: Sequence[int], of: Sequence[int]) -> None:
        """Return once those of `of` have come to the same call with the same tag; those of `to` see this one's.

        Raises:
            Broken: a rank is lost, or another tag came (once all have been read).
        """
        signal = _SIGNAL.pack(tag, self._num_signals)
        self._num_signals += 1
        for rank in to:
            self._send_all(rank, signal)
        signals = {rank: self._receive_all(rank, _SIGNAL.size) for rank in of}
        for rank, got in signals.items():
            if got != signal:
                raise Broken(Failure(rank, "differs"))

    def move(self, to: int, outgoing: memoryview | None, of: int, incoming: memoryview | None) -> tuple[int, int]:
        """Send what can be sent, receive what is there, and return how many bytes each was; wait for one of both.

        Nothing waits where a given view is empty.
        """
        if any(given is not None and not given for given in (outgoing, incoming)):
            return 0, 0
        while True:
            num_sent = 0 if outgoing is None else self._send(to, outgoing)
            num_received = 0 if incoming is None else self._receive(of, incoming)
            if num_sent or num_received:
                return num_sent, num_received
            self._wait(to if outgoing is not None else None, of if incoming is not None else None)

    def break_off(self) -> None:
        """End all exchanges, also one that another thread waits in; their other ends see it."""
        for each in self._sockets.values():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets, which nobody waits at any more."""
        for each in self._sockets.values():
            each.close()

    def _send(self, rank: int, data: memoryview) -> int:
        try:
            return self._sockets[rank].send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(Failure(rank, "ended")) from error

    def _receive(self, rank: int, into: memoryview) -> int:
        try:
            num_bytes = self._sockets[rank].recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(Failure(rank, "ended")) from error
        if num_bytes == 0:
            raise Broken(Failure(rank, "ended"))
        return num_bytes

    def _send_all(self, rank: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            num_sent = self._send(rank, left)
            if not num_sent:
                self._wait(rank, None)
            left = left[num_sent:]

    def _receive_all(self, rank: int, size: int) -> bytes:
        got = bytearray(size)
        left = memoryview(got)
        while left:
            num_received = self._receive(rank, left)
            if not num_received:
                self._wait(None, rank)
            left = left[num_received:]
        return bytes(got)

    def _wait(self, to: int | None, of: int | None) -> None:
        """Wait until one can be written to or the other has written."""
        masks: dict[int, int] = {}
        for rank, mask in ((to, _WRITE), (of, _READ)):
            if rank is not None:
                file = self._sockets[rank].fileno()
                masks[file] = masks.get(file, 0) | mask
        poller = select.poll()
        for file, mask in masks.items():
            if file < 0:
                raise Broken(Failure(to if of is None else of, "ended"))  # type: ignore[arg-type]
            poller.register(file, mask)
        if not poller.poll(self._timeout_s * 1e3):
            late = of if of is not None else to
            assert late is not None
            raise Broken(Failure(late, "still"))
