"""What the processes of a gang are to one another: which roles a job needs, and which rank has which.

With `plan.sync: {kind: allreduce}` all are workers. With `parameter_servers` rank 0 is the chief, which runs the
loop; then come the workers, which compute what the chief gives out, and the servers, which hold the variables. Names
and order are those of TensorFlow's clusters (tf.train.ClusterSpec).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gscalar.model.spec import JobSpec, ParameterServers


class Role(StrEnum):
    """What a process does for its run."""

    CHIEF = "chief"
    WORKER = "worker"
    SERVER = "ps"


_WORDS = {Role.CHIEF: "chief", Role.WORKER: "worker", Role.SERVER: "parameter server"}


@dataclass(frozen=True, slots=True)
class Place:
    """One process's role, and its number among those of the same role."""

    role: Role
    index: int


def num_helpers(spec: JobSpec) -> int:
    """Return the processes of a gang besides the workers."""
    return 1 + spec.plan.sync.servers if isinstance(spec.plan.sync, ParameterServers) else 0


def num_processes(spec: JobSpec) -> int:
    """Return the size of the gang."""
    return spec.workers + num_helpers(spec)


def places(spec: JobSpec) -> tuple[Place, ...]:
    """Return the place of each rank."""
    workers = tuple(Place(Role.WORKER, index) for index in range(spec.workers))
    if not isinstance(spec.plan.sync, ParameterServers):
        return workers
    servers = tuple(Place(Role.SERVER, index) for index in range(spec.plan.sync.servers))
    return (Place(Role.CHIEF, 0), *workers, *servers)


def describe_rank(spec: JobSpec, rank: int) -> str:
    """Return a rank for people: `rank 3`, or `rank 3 (parameter server 0)` where there are several roles."""
    known = places(spec)
    if not num_helpers(spec) or rank >= len(known):
        return f"rank {rank}"
    place = known[rank]
    number = "" if place.role is Role.CHIEF else f" {place.index}"
    return f"rank {rank} ({_WORDS[place.role]}{number})"


def count_roles(spec: JobSpec) -> dict[str, int]:
    """Return how many processes have each role."""
    return dict(Counter(place.role.value for place in places(spec)))


def count_plain_roles(spec: Mapping[str, Any], world: int) -> dict[str, int]:
    """Return the same of a spec as records carry it, for a gang of `world` processes."""
    sync = (spec.get("plan") or {}).get("sync") or {}
    servers = sync.get("servers") if sync.get("kind") == "parameter_servers" else None
    if not isinstance(servers, int) or world <= servers + 1:
        return {Role.WORKER.value: world}
    return {Role.CHIEF.value: 1, Role.WORKER.value: world - 1 - servers, Role.SERVER.value: servers}


def describe_gang(counts: Mapping[str, int]) -> str:
    """Return the gang for people: `2 workers`, or `1 chief, 2 workers, 1 parameter server`."""
    return ", ".join(f"{count} {_WORDS[Role(role)]}{'s' if count != 1 else ''}" for role, count in counts.items())
