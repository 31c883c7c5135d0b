"""Which record files a run has. Apart from what reads records or opens the catalog, which take long to import."""

from __future__ import annotations

import os
import re
from typing import Final

from gscalar.state.home import RunFolder

RECORD_NAME: Final = re.compile(
    r"(a(?P<attempt>\d{1,6})-r(?P<rank>\d{1,7})|supervisor-a(?P<first>\d{1,6})|edit-[0-9a-zA-Z_-]{1,40})\.rec"
)


def is_record(file: str) -> bool:
    """Tell whether a file among the records has the name of a record."""
    return RECORD_NAME.fullmatch(file) is not None


def scan_records(folder: RunFolder) -> dict[str, tuple[int, int]]:
    """Return size and time of change of each file among the run's records, by name."""
    found: dict[str, tuple[int, int]] = {}
    try:
        with os.scandir(folder.records) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if is_record(entry.name):
                    status = entry.stat()
                    found[entry.name] = (status.st_size, status.st_mtime_ns)
    except OSError:
        # Not there yet, or gone in the middle: the next look will tell.
        pass
    return found
