"""Append-only record files: writer, reader, seals. docs/record.md describes the format."""

from gscalar.state.records.identity import own_header
from gscalar.state.records.reader import (
    Damage,
    Frame,
    Logged,
    RecordTail,
    join_names,
    read_logged,
    read_record,
)
from gscalar.state.records.verify import RecordReport, verify_record
from gscalar.state.records.writer import RecordWriter

__all__ = [
    "RecordWriter",
    "own_header",
    "read_record",
    "read_logged",
    "RecordTail",
    "Frame",
    "Damage",
    "Logged",
    "join_names",
    "verify_record",
    "RecordReport",
]
