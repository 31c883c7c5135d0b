"""`python -m gscalar` is the command `gscalar`."""

from __future__ import annotations

import sys

from gscalar.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
