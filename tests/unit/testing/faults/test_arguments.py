"""The command's words become a plan; what makes no sense is said."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gscalar.testing.faults.arguments import parse_arguments
from gscalar.testing.faults.plan import (
    AfterS,
    AtStep,
    BetweenS,
    BetweenSteps,
    Corrupt,
    Delay,
    Fault,
    FillDisk,
    Kill,
    Slow,
    SlowLoader,
    Stop,
)

NOW = AfterS(0.0)
LINES: dict[str, tuple[Fault, ...]] = {
    "--kill 1 --at-step 20": (Kill(target=1, when=AtStep(20)),),
    "--kill supervisor": (Kill(target="supervisor", when=NOW),),
    "--kill all --after 3.5": (Kill(target="all", when=AfterS(3.5)),),
    "--kill any --at-step 10-50": (Kill(target=None, when=BetweenSteps(10, 50)),),
    "--stop 0 --for 5 --after 1-2.5": (Stop(rank=0, for_s=5.0, when=BetweenS(1.0, 2.5)),),
    "--stop 0 --for 5 --children": (Stop(rank=0, for_s=5.0, when=NOW, children=True),),
    "--slow any --factor 2": (Slow(rank=None, factor=2.0, when=NOW),),
    "--slow 1 --factor 2 --no-children --for 9": (Slow(rank=1, factor=2.0, when=NOW, for_s=9.0, children=False),),
    "--delay 1 --seconds 0.2 --every 3": (Delay(rank=1, delay_s=0.2, every_steps=3, when=NOW),),
    "--slow-loader 0 --factor 4": (SlowLoader(rank=0, factor=4.0, when=NOW),),
    "--fill-disk /mnt/x --leave 4096": (FillDisk(path=Path("/mnt/x"), leave_bytes=4096, when=NOW),),
    "--corrupt records/a.rec --how zero --bytes 3": (Corrupt(file="records/a.rec", how="zero", num_bytes=3, when=NOW),),
    "--kill 1 --at-step 5 --stop 0 --for 2 --at-step 9": (
        Kill(target=1, when=AtStep(5)),
        Stop(rank=0, for_s=2.0, when=AtStep(9)),
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_words_become_faults(line: str) -> None:
    options, plan = parse_arguments(["bytes_lm", "--seed", "3", *shlex.split(line)])
    assert plan.faults == LINES[line]
    assert (options.run, options.home, plan.seed) == ("bytes_lm", None, 3)


WRONG = {
    "": "give at least one fault",
    "--at-step 5": "--at-step is about no fault",
    "--factor 5 --kill 1": "--factor is about no fault",
    "--kill 1 --for 5": "--kill: got an unexpected keyword argument 'for_s'",
    "--stop 1": "--stop: missing 1 required keyword-only argument: 'for_s'",
    "--kill first": "invalid",
    "--corrupt x --how burn": "invalid choice",
}


@pytest.mark.parametrize("line", WRONG)
def test_words_without_sense_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["bytes_lm", *shlex.split(line)])
    assert caught.value.code == 2
    assert WRONG[line] in capsys.readouterr().err
