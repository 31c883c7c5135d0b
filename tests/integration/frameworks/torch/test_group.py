"""Ranks that do not find each other say so; what several ranks do together is in the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gscalar.base.errors import EnvironmentProblem, Retryable

pytestmark = pytest.mark.torch


def test_a_rank_that_nobody_waits_for_says_so_and_may_be_tried_again(
    place: Any, free_ports: Callable[[int], list[int]]
) -> None:
    from gscalar.frameworks.torch.group import HostGroup

    (port,) = free_ports(1)
    with pytest.raises(Retryable, match="Rank 1 of 2 did not reach the others") as caught:
        HostGroup(replace(place(1, 2), master_port=port), timeout_s=0.5)
    assert caught.value.code == "rendezvous-failed"


def test_a_port_at_which_nobody_can_be_reached_is_refused_at_once(place: Any) -> None:
    from gscalar.frameworks.torch.group import HostGroup

    with pytest.raises(EnvironmentProblem) as caught:
        HostGroup(replace(place(0, 2), master_port=0), timeout_s=60)
    assert caught.value.code == "launcher-unclear"


def test_a_group_that_the_script_made_itself_stays_the_scripts(process_group: Any, place: Any) -> None:
    from gscalar.frameworks.torch.group import HostGroup

    group = HostGroup(place(), timeout_s=60)
    assert group.start_sum([1.5, 2.0])() == [1.5, 2.0]
    assert group.gather(b"") == [b""]
    group.close()
    assert process_group.is_initialized()
