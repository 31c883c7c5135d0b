"""Which record files a run has. Apart from what opens the catalog, which takes a quarter of a second to import."""

from __future__ import annotations

import os

from gscalar.control.indexing.readings import is_record
from gscalar.state.home import RunFolder


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
