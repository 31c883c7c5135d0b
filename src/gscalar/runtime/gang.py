"""This process among all of its attempt's, where a framework's own cluster is built of them.

All tell one another where they can be reached. Where the plan has parameter servers, only the chief runs the
script's loop; the others serve it until it says that the training is over, and end as it does:

    chief       distribute() -> loop -> end of the run: says how it ended, and leaves
    the others  distribute() -> wait for that word -> exit 0 (completed) or 75 (stopped, resumable)

A chief that ends without a word has failed: those that served it fail too, as a consequence. SIGTERM reaches all at
once, and those who serve only note it: the chief's last checkpoint needs the variables that they hold.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, NoReturn

import msgspec

from gscalar.base.errors import ScalarError, UserError
from gscalar.model.roles import Place, Role, num_helpers, num_processes, places
from gscalar.model.status import Exit, Status
from gscalar.runtime.framework import Framework, Group
from gscalar.runtime.host_group import HostGroup
from gscalar.runtime.launch import Launch
from gscalar.runtime.session import Run

_COMPLETED: Final = b"completed"
_STOPPED: Final = b"stopped"


class Gang:
    """The processes of one attempt, each with its role.

    Raises:
        UserError: `one-worker`, where there is nobody to distribute over.
    """

    def __init__(self, run: Run) -> None:
        self._worker = worker = run._worker
        self._launch = launch = worker.opened.gang
        self._places = places(worker.spec)
        self.serves_chief = num_helpers(worker.spec) > 0
        if launch.world == 1 or launch.world != num_processes(worker.spec):
            raise self._too_small()
        self.place: Place = self._places[launch.rank]
        self._group: Group | None = None
        self._asked = False

    def _too_small(self) -> UserError:
        world = self._launch.world
        if self.serves_chief:
            needed = num_helpers(self._worker.spec) + 1
            return UserError(
                code="one-worker",
                what=f"Parameter servers need at least {needed} processes: a chief, a worker, and the servers.",
                value=f"{world} process{'es' if world > 1 else ''}",
                next_step=(
                    "Start it with `gscalar run --workers 2 --set plan.sync.kind=parameter_servers -- python "
                    "train.py`, with your script's name."
                ),
            )
        return UserError(
            code="one-worker",
            what="A strategy was asked for, and there is one worker: nothing can be distributed.",
            value="workers=1",
            next_step=(
                "Start it with `gscalar run --workers 2 -- python train.py`, with your script's name, or call "
                "distribute() only where run.world > 1."
            ),
        )

    @property
    def has_met(self) -> bool:
        """Whether this process has taken its place before."""
        return self._worker.distributed

    def use(self, framework: Framework) -> None:
        """Train with this framework, unless one is in use."""
        self._worker.use(framework)

    def explain_by(self, explain: Callable[[BaseException], None]) -> None:
        """Let this say more of an exception that leaves the script."""
        self._worker.explain = explain

    def take_signals_back(self) -> None:
        """Take SIGTERM back from a runtime that has put its own handler in front."""
        self._worker.exits.take_back()

    def meet(self, port: int) -> dict[str, list[str]]:
        """Return where all processes listen, by role; this one at `port`. All call it at the same place.

        Raises:
            Retryable: `rendezvous-failed`, `peer-lost`.
        """
        self._group = group = self._connect()
        told = group.gather(msgspec.msgpack.encode(f"{own_host(self._launch)}:{port}"))
        listening = msgspec.msgpack.decode(group.broadcast(msgspec.msgpack.encode(told)), type=list[bytes])
        addresses: dict[str, list[str]] = {}
        for place, address in zip(self._places, listening, strict=True):
            addresses.setdefault(place.role, []).append(msgspec.msgpack.decode(address, type=str))
        self._worker.distributed = True
        return addresses

    def _connect(self) -> Group:
        if not self.serves_chief:
            return self._worker.connected()
        group = HostGroup(self._launch, 2 * self._worker.spec.hang_after_s)
        group.when_asked_to_stop(self._worker.exits.request_stop)
        self._worker.before_close(self._leave(group) if self.place.role is Role.CHIEF else group.close)
        return group

    def _leave(self, group: HostGroup) -> Callable[[], None]:
        def leave() -> None:
            word = {Status.COMPLETED: _COMPLETED, Status.INTERRUPTED: _STOPPED, Status.CANCELLED: _STOPPED}
            told = word.get(Status(self._worker.status))
            # Who serves may have died just now; the run has ended all the same.
            with contextlib.suppress(ScalarError):
                if told is not None:
                    group.broadcast(told)
            group.close()

        return leave

    def serve(self) -> NoReturn:
        """Be there for the chief until the training is over, and end the process as the chief ends.

        Raises:
            Retryable: `peer-lost`, where the chief ended without a word.
        """
        assert isinstance(self._group, HostGroup), "meet comes first"
        worker = self._worker
        worker.exits.in_loop = True
        word = self._group.await_broadcast(self._pass_stop_on)
        worker.exits.in_loop = False
        if word == _STOPPED:
            worker.stop()
        worker.finish()
        raise SystemExit(Exit.DONE)

    def _pass_stop_on(self) -> None:
        """Ask the chief to stop, once, where this process was told to: all stop as one."""
        if self._worker.exits.stop_requested and not self._asked:
            self._asked = True
            assert isinstance(self._group, HostGroup)
            self._group.ask_to_stop()


def own_host(launch: Launch) -> str:
    """Return the address at which the other processes reach this one."""
    assert launch.master_addr is not None
    assert launch.master_port is not None
    if launch.local_world == launch.world:
        return "127.0.0.1"
    if launch.rank == 0:
        return launch.master_addr
    family = socket.getaddrinfo(launch.master_addr, launch.master_port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as asking:  # connecting sends nothing, and chooses the way
        asking.connect((launch.master_addr, launch.master_port))
        host: str = asking.getsockname()[0]
    return launch.master_addr if ip_address(host.partition("%")[0]).is_loopback else host
