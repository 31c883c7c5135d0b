"""Slurm's short forms."""

from __future__ import annotations

import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.runtime.hosts import expand_hosts, expand_task_counts


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("node7", ["node7"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("gpu-a[1-2],login,gpu-b[3]", ["gpu-a1", "gpu-a2", "login", "gpu-b3"]),
        ("r[1-2]n[08-09].hpc", ["r1n08.hpc", "r1n09.hpc", "r2n08.hpc", "r2n09.hpc"]),
        ("c[3005,3011,3019,3105]", ["c3005", "c3011", "c3019", "c3105"]),
    ],
)
def test_a_node_list_is_written_out(text: str, want: list[str]) -> None:
    assert expand_hosts(text) == want


@pytest.mark.parametrize("text", ["node[1-", "node]1[", "node[a-b]", "node[]"])
def test_a_node_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        expand_hosts(text)
    assert caught.value.code == "launcher-unclear"
    assert caught.value.value == text


@pytest.mark.parametrize(("text", "want"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("34,26,2(x2)", [34, 26, 2, 2])])
def test_task_counts_are_written_out(text: str, want: list[int]) -> None:
    assert expand_task_counts(text) == want


@pytest.mark.parametrize("text", ["two", "2(x)", "", "2,,3"])
def test_task_counts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        expand_task_counts(text)
    assert caught.value.code == "launcher-unclear"
