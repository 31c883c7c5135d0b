"""The states of a run and the exit codes, in one place."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Status(StrEnum):
    """What a run is."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self not in (Status.QUEUED, Status.RUNNING)


class FailureClass(StrEnum):
    """Why an attempt ended badly."""

    USER_ERROR = "user_error"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    LOST = "lost"


class Exit(IntEnum):
    """Exit codes of the command and of a worker."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    ENVIRONMENT = 3
    RESUMABLE = 75
    INTERRUPTED = 130
