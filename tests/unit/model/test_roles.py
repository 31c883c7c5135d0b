"""Which role each process of a gang has."""

from __future__ import annotations

import pytest

from gscalar.model import roles
from gscalar.model.spec import AllReduce, JobSpec, ParameterServers, Plan, Sync


def job(workers: int, sync: Sync | None = None) -> JobSpec:
    return JobSpec(workers=workers, plan=Plan(sync=sync or AllReduce()))


# sentence: (job, roles by rank, for people)
GANGS = {
    "one worker": (job(1), ["worker 0"], "1 worker"),
    "all are workers where they agree at every step": (job(2), ["worker 0", "worker 1"], "2 workers"),
    "a chief comes first, servers last": (
        job(2, ParameterServers(servers=1)),
        ["chief 0", "worker 0", "worker 1", "ps 0"],
        "1 chief, 2 workers, 1 parameter server",
    ),
    "several servers": (
        job(1, ParameterServers(servers=2)),
        ["chief 0", "worker 0", "ps 0", "ps 1"],
        "1 chief, 1 worker, 2 parameter servers",
    ),
}


@pytest.mark.parametrize("sentence", GANGS)
def test_a_gang(sentence: str) -> None:
    spec, want, text = GANGS[sentence]
    got = [f"{place.role} {place.index}" for place in roles.places(spec)]
    assert got == want
    assert roles.num_processes(spec) == len(want)
    assert roles.describe_gang(roles.count_roles(spec)) == text


# sentence: (spec as records carry it, processes, counts)
PLAIN = {
    "an old record says nothing of sync": ({}, 3, {"worker": 3}),
    "all reduce": ({"plan": {"sync": {"kind": "allreduce"}}}, 2, {"worker": 2}),
    "servers": ({"plan": {"sync": {"kind": "parameter_servers", "servers": 2}}}, 6, {"chief": 1, "worker": 3, "ps": 2}),
    "a gang that was too small for its servers": (
        {"plan": {"sync": {"kind": "parameter_servers", "servers": 2}}},
        1,
        {"worker": 1},
    ),
}


@pytest.mark.parametrize("sentence", PLAIN)
def test_the_roles_of_a_recorded_gang(sentence: str) -> None:
    spec, world, want = PLAIN[sentence]
    assert roles.count_plain_roles(spec, world) == want


def test_a_rank_is_named_by_its_role_where_there_are_several() -> None:
    asynchronous = job(2, ParameterServers(servers=1))
    got = [roles.describe_rank(asynchronous, rank) for rank in range(5)]
    want = ["rank 0 (chief)", "rank 1 (worker 0)", "rank 2 (worker 1)", "rank 3 (parameter server 0)", "rank 4"]
    assert got == want
    assert roles.describe_rank(job(2), 1) == "rank 1"
