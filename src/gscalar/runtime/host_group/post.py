"""Small messages through rank 0: the sockets, the thread that reads them, and the calls that wait for an answer.

A thread reads on every rank, so that a rank's death is known at once, whatever the training is doing: rank 0's
thread sees the socket end and tells all others. Rank 0 answers calls in whichever thread brings the last part. A
rank that waits for too long asks rank 0 for whom.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Final

from gscalar.base.errors import ScalarError
from gscalar.observation.threads import start_thread
from gscalar.runtime.host_group.roundtable import Deliveries, Failure, Kind, Message, Roundtable

_HEAD: Final = struct.Struct("<BQQ")  # kind, number of the call, bytes of the payload
_CHUNK_BYTES: Final = 1 << 18
_ANSWER_WITHIN_S: Final = 0.5
_LOCK_WITHIN_S: Final = 0.2
_THREAD_ENDS_WITHIN_S: Final = 5.0


class Post:
    """A rank's small messages. Owns its sockets: to all others on rank 0, to rank 0 elsewhere."""

    def __init__(self, rank: int, world: int, sockets: Mapping[int, socket.socket], timeout_s: float) -> None:
        self._rank = rank
        self._sockets = dict(sockets)
        self._timeout_s = timeout_s
        self._table = Roundtable(world) if rank == 0 else None
        self._changed = threading.Condition()  # guards what follows, and the order of what is sent
        self._answers: dict[int, Message] = {}
        self._num_calls = 0
        self._failure: Failure | None = None
        self._closing = False
        self._left: set[int] = set()
        self.on_failure: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        for each in self._sockets.values():
            each.settimeout(timeout_s)
        self._thread = start_thread(self._read, "gscalar-group") if self._sockets else None

    @property
    def collects(self) -> bool:
        """Whether this rank is the one that gathers."""
        return self._table is not None

    def begin(self, kind: Kind, payload: bytes) -> int:
        """Give this rank's part of the next call and return the call's number."""
        with self._changed:
            self.check()
            self._num_calls += 1
            message = Message(kind, self._num_calls, payload)
            if self._table is not None or kind is not Kind.BROADCAST:
                self._give(message)
            return message.number

    def is_there(self, number: int, timeout_s: float) -> bool:
        """Whether the answer to a call has come, or never will; waits for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_decided(number), timeout_s)

    def tell(self, kind: Kind) -> None:
        """Tell rank 0 something that belongs to no call."""
        with self._changed:
            self._give(Message(kind, 0))

    def wait(self, kind: Kind, number: int) -> bytes:
        """Return the answer to a call.

        Raises:
            Retryable: `peer-lost`.
            TrainingError: `ranks-differ`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_decided(number), self._timeout_s):
                self._give(Message(Kind.ASK, number))
                if not self._changed.wait_for(lambda: self._is_decided(number), _ANSWER_WITHIN_S):
                    self._fail(Failure(0, "still"))
            answer = self._answers.pop(number, None)
            if answer is None:
                self._failure = self._failure or Failure(0, "left")
                raise self._failure.error(self._rank)
            if answer.kind is not kind:
                raise self.report(Failure(0, "differs"))
            return answer.payload

    def report(self, failure: Failure) -> ScalarError:
        """Tell all ranks of a failure seen elsewhere, and return the error to raise.

        Rank 0 may know better who was the first: its word counts where it comes soon.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._failure is not None, _ANSWER_WITHIN_S):
                self._give(Message(Kind.FAILED, 0, failure.packed()))
                self._fail(failure)
            return (self._failure or failure).error(self._rank)

    def check(self) -> None:
        """Raise the error of a group that has failed."""
        with self._changed:
            if self._failure is not None:
                raise self._failure.error(self._rank)

    def close(self) -> None:
        """Say good-bye and close the sockets, without waiting for anybody."""
        self._closing = True
        # The lock is held for long only where another thread sends to a rank that stands still.
        if self._changed.acquire(timeout=_LOCK_WITHIN_S):
            for each in self._sockets.values():
                each.setblocking(False)
            if self._failure is None:
                self._give(Message(Kind.BYE, 0))
            self._changed.release()
        for each in self._sockets.values():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(_THREAD_ENDS_WITHIN_S)
        self.drop()

    def drop(self) -> None:
        """Close this process's handles of the sockets, and nothing else."""
        for each in self._sockets.values():
            each.close()

    def _is_decided(self, number: int) -> bool:
        return number in self._answers or self._failure is not None or 0 in self._left

    def _give(self, message: Message) -> None:
        """Hand a message of this rank to rank 0."""
        if self._table is None:
            self._send(0, message)
        else:
            self._deliver(self._table.take(0, message))

    def _deliver(self, deliveries: Deliveries) -> None:
        for rank, message in deliveries:
            if rank == self._rank:
                self._take_answer(message)
            elif rank not in self._left:
                self._send(rank, message)

    def _send(self, rank: int, message: Message) -> None:
        try:
            self._sockets[rank].sendall(_HEAD.pack(message.kind, message.number, len(message.payload)))
            self._sockets[rank].sendall(message.payload)
        except TimeoutError:
            self._fail(Failure(rank, "still"))
        except OSError:
            pass  # the reading thread sees the socket's end, and why

    def _read(self) -> None:
        """Read until every socket has ended."""
        poller = select.poll()
        reading = {each.fileno(): (rank, Unpacker()) for rank, each in self._sockets.items()}
        for file in reading:
            poller.register(file, select.POLLIN)
        while reading:
            for file, _ in poller.poll():
                rank, unpacker = reading[file]
                try:
                    data = self._sockets[rank].recv(_CHUNK_BYTES)
                except (BlockingIOError, TimeoutError):
                    continue
                except OSError:
                    data = b""
                if not data:
                    poller.unregister(file)
                    del reading[file]
                    self._ended(rank)
                for message in unpacker.feed(data):
                    self._take(rank, message)

    def _take(self, rank: int, message: Message) -> None:
        if message.kind is Kind.STOP:
            self.on_stop()
            return
        with self._changed:
            if message.kind is Kind.BYE:
                self._left.add(rank)
                self._changed.notify_all()
            if self._table is not None:
                self._deliver(self._table.take(rank, message))
            else:
                self._take_answer(message)

    def _take_answer(self, message: Message) -> None:
        if message.kind is Kind.FAILED:
            self._fail(Failure.unpacked(message.payload))
        elif message.kind is not Kind.BYE:
            self._answers[message.number] = message
            self._changed.notify_all()

    def _ended(self, rank: int) -> None:
        with self._changed:
            if self._closing or rank in self._left:
                return
            self._left.add(rank)
            failure = Failure(rank, "ended")
            if self._table is not None:
                self._deliver(self._table.fail(failure))
            self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        if self._failure is None and not self._closing:
            self._failure = failure
            self._changed.notify_all()
            self.on_failure()


class Unpacker:
    """Messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are whole now."""
        self._held += data
        messages = []
        begin = 0
        while len(self._held) - begin >= _HEAD.size:
            kind, number, size = _HEAD.unpack_from(self._held, begin)
            end = begin + _HEAD.size + size
            if end > len(self._held):
                break
            messages.append(Message(Kind(kind), number, bytes(self._held[begin + _HEAD.size : end])))
            begin = end
        del self._held[:begin]
        return messages
