"""`python -m gscalar.testing.faults`: inject faults into a run from a terminal."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from types import FrameType

from gscalar.base.errors import ScalarError
from gscalar.control.indexer import refresh
from gscalar.state.catalog import open_catalog, resolve_run
from gscalar.state.home import Home, locate_home
from gscalar.testing.faults.arguments import parse_arguments
from gscalar.testing.faults.effects import Injected
from gscalar.testing.faults.injecting import inject


def main() -> int:
    """Inject what the command line says; return the exit code."""
    options, plan = parse_arguments()
    signal.signal(signal.SIGTERM, _leave)
    home = locate_home(options.home)
    try:
        inject(plan, home, _resolve(home, options.run), on_injected=_print)
    except ScalarError as error:
        sys.stderr.write(f"{error.message()}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _resolve(home: Home, reference: str) -> str:
    with open_catalog(home) as catalog:
        refresh(home, catalog)
        return resolve_run(catalog, reference)


def _print(entry: Injected) -> None:
    sys.stdout.write(json.dumps(dataclasses.asdict(entry)) + "\n")
    sys.stdout.flush()


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
