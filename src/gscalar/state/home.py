"""Where everything lives: the home folder and the layout of a run's folder.

HOME/
  index.db                        the catalog (GSCALAR_INDEX moves it to a node-local disk)
  series/<run id>.db              a run's series, beside the catalog wherever that is
  runs/<run id>/
    job.json                      the resolved spec, its origins, the run's id, project, name
    records/                      one append-only file a writer
      a000-r00000.rec             attempt 0, rank 0
      supervisor-a000.rec         the supervisor whose first attempt was 0
      edit-<id>.rec               one `gscalar tag`
    logs/a000/rank-00000.log      stdout and stderr of a worker
    checkpoints/                  see gscalar.state.checkpoints
    control/                      requests: stop.json, cancel
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from gscalar.base.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def job_file(self) -> Path:
        return self.path / "job.json"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def worker_record(self, attempt: int, rank: int) -> Path:
        return self.records / f"a{attempt:03d}-r{rank:05d}.rec"

    def supervisor_record(self, first_attempt: int) -> Path:
        return self.records / f"supervisor-a{first_attempt:03d}.rec"

    def worker_log(self, attempt: int, rank: int) -> Path:
        return self.logs / f"a{attempt:03d}" / f"rank-{rank:05d}.log"

    def create(self) -> None:
        """Make the run's folders; those that exist stay as they are."""
        for folder in (self.records, self.checkpoints, self.control, self.logs):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of a home."""

    path: Path

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def index(self) -> Path:
        override = os.environ.get("GSCALAR_INDEX")
        return Path(override).expanduser().absolute() if override else self.path / "index.db"

    def run(self, run_id: str) -> RunFolder:
        """Return the folder of a run; the id must be a plain name, so that no path can leave the home."""
        return RunFolder(self.runs / _plain_name(run_id))

    def series(self, run_id: str) -> Path:
        """Return the file of a run's series."""
        return self.index.parent / "series" / f"{_plain_name(run_id)}.db"


def _plain_name(run_id: str) -> str:
    assert run_id, "an empty run id"
    assert "/" not in run_id, run_id
    assert not run_id.startswith("."), run_id
    return run_id


def locate_home(flag: str | os.PathLike[str] | None = None) -> Home:
    """Return the home that the flag, GSCALAR_HOME or the default names, without touching it."""
    chosen = flag or os.environ.get("GSCALAR_HOME") or "~/.gscalar"
    return Home(Path(chosen).expanduser().absolute())


def open_home(flag: str | os.PathLike[str] | None = None) -> Home:
    """Return the home after making sure that it can be written.

    Raises:
        EnvironmentProblem: `home-not-writable`.
    """
    home = locate_home(flag)
    probe = home.path / f".probe-{uuid.uuid4().hex}"
    try:
        home.runs.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EnvironmentProblem(
            code="home-not-writable",
            what=f"The home folder cannot be written: {error.strerror}.",
            value=str(home.path),
            next_step="Give a writable folder with --home or GSCALAR_HOME, or free some disk.",
        ) from error
    return home


def open_home_to_read(flag: str | os.PathLike[str] | None = None) -> Home:
    """Return the home as `open_home` does, but do not make one that does not exist: it has no runs. Raises as that."""
    home = locate_home(flag)
    try:
        home.path.lstat()
    except FileNotFoundError:
        return home
    except OSError:
        pass  # the next line says what is wrong
    return open_home(flag)
