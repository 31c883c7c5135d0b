"""What a run says on stderr where no supervisor does it: which run this is, what went wrong, how it ended.

Under `gscalar run` the supervisor shows all of it. Alone, or under another launcher, rank 0 says a few lines, and
nobody has to guess where the record went.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

from gscalar.model.roles import count_roles, describe_gang
from gscalar.runtime.opening import Opened

_MOST_REPEATS: Final = 3


class Telling:
    """Says lines for people, or nothing where somebody else does."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._speaks = not opened.supervised and opened.launch.rank == 0
        self._num_said: dict[str, int] = {}

    def begun(self) -> None:
        """Say which run this is and where its record is."""
        counts = count_roles(self._opened.resolved.spec)
        workers = f", {describe_gang(counts)}" if self._opened.gang.world > 1 else ""
        self.say(f"run {self._opened.run_id} ({self._opened.name}), attempt {self._opened.attempt}{workers}")
        self.say(f"record {self._opened.folder.path}")

    def stopping(self) -> None:
        """Say what a Ctrl-C in a training loop does. Its signal may have struck inside a print: so not by print."""
        if self._speaks:
            with contextlib.suppress(OSError):
                os.write(2, b"gscalar: stops after this step, with a checkpoint; Ctrl-C again stops it now\n")

    def ended(self, how: str, step: int) -> None:
        """Say how the run ended and what to look at next."""
        self.say(f"run {self._opened.run_id} {how} after step {step}; gscalar show {self._opened.run_id}")

    def warn(self, kind: str, text: str) -> None:
        """Say what people should know now; of one kind not more than three times."""
        count = self._num_said[kind] = self._num_said.get(kind, 0) + 1
        if count <= _MOST_REPEATS:
            self.say(text + ("; further ones are only recorded" if count == _MOST_REPEATS else ""))

    def say(self, text: str) -> None:
        """Write one line; where stderr is closed or full, nobody is told."""
        if self._speaks and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                print(f"gscalar: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the script's own terminal
