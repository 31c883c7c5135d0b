"""What `log` returned from is in the file, whatever happens to the process: real processes, real kills."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gscalar.model.events import Beat, Dropped, Header, Names, Points
from gscalar.state.records.reader import Damage, Frame, read_logged, read_record
from gscalar.state.records.verify import verify_record

Spawn = Callable[..., "subprocess.Popen[Any]"]
NUM_METRICS = 20

OPEN = """
import multiprocessing, os, resource, signal, struct, sys, threading
from pathlib import Path
from gscalar.model.events import Beat, Header
from gscalar.state.records.writer import RecordWriter

path = Path(sys.argv[1])
writer = RecordWriter(path, Header(1, "run", 0, 0, 1, "worker", "host", os.getpid(), 1.0, 1, "0"))
"""

# Acknowledges each step on stdout after its log has returned, while another thread seals and emits.
LOG_AND_ACKNOWLEDGE = (
    OPEN
    + f"""
def seal_and_emit():
    while True:
        writer.emit(Beat(1, "log"))
        writer.seal("checkpoint")

threading.Thread(target=seal_and_emit, daemon=True).start()
step = 0
while True:
    writer.log(step, 1, {{f"metric/{{number}}": step + number for number in range({NUM_METRICS})}})
    os.write(1, struct.pack("<q", step))
    step += 1
"""
)

FORK_AND_WRITE = (
    OPEN
    + """
def in_the_child():
    writer.emit(Beat(2, "child"))
    writer.log(2, 2, {"child": 1.0})
    writer.seal("child")
    writer.flush()
    writer.close()

writer.emit(Beat(1, "before"))
children = [multiprocessing.get_context("fork").Process(target=in_the_child) for _ in range(3)]
held, forked = threading.Event(), threading.Event()

def write_during_the_fork():
    with writer._lock, writer._sealing:
        held.set()
        forked.wait()

thread = threading.Thread(target=write_during_the_fork)
thread.start()
held.wait()
for child in children:
    child.start()
forked.set()
thread.join()
for child in children:
    child.join(60)
    assert child.exitcode == 0, child.exitcode
writer.emit(Beat(3, "after"))
writer.close()
assert writer.dropped == 0
"""
)

# A limit on the size of files is the one full disk that a process can make for itself.
FILL_THE_DISK = (
    OPEN
    + """
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_007, hard))
for step in range(1000):
    writer.log(step, 1, {"loss": 1.0, "lr": 2.0})
kept = 1000 - writer.dropped
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
writer.log(1000, 1, {"loss": 1.0, "lr": 2.0})
writer.close()
print(kept, writer.dropped)
"""
)


def run(script: str, path: Path) -> str:
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("num_acknowledged", [1, 20, 300, 1500, 4000])
def test_every_log_that_returned_before_the_kill_is_read_back(
    tmp_path: Path, spawn: Spawn, num_acknowledged: int
) -> None:
    path = tmp_path / "a.rec"
    process = spawn([sys.executable, "-c", LOG_AND_ACKNOWLEDGE, str(path)], stdout=subprocess.PIPE)
    received = b""
    while len(received) < 8 * num_acknowledged:
        part = process.stdout.read1(4096)
        assert part, "the writer ended by itself"
        received += part
    process.kill()
    process.wait()
    received += process.stdout.read()
    [last_acknowledged] = struct.unpack("<q", received[-8 - len(received) % 8 :][:8])

    logged = {entry.step: entry.values for entry in read_logged(path)}
    missing = [step for step in range(last_acknowledged + 1) if step not in logged]
    assert missing == []
    for step, values in logged.items():
        assert values == {f"metric/{number}": float(step + number) for number in range(NUM_METRICS)}
    assert max(logged) - last_acknowledged <= 1
    report = verify_record(path)
    assert report.damages == ()
    assert report.first_broken_seal is None


def test_a_forked_child_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    run(FORK_AND_WRITE, path)
    events = [item.event for item in read_record(path) if isinstance(item, Frame)]
    assert [event.phase for event in events if isinstance(event, Beat)] == ["before", "after"]
    assert not any(isinstance(event, Points | Names) for event in events)
    report = verify_record(path)
    assert (report.sound, report.seals, report.torn_bytes) == (True, 1, 0)


def test_a_real_full_file_costs_what_did_not_fit_and_says_how_much(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    kept, dropped = map(int, run(FILL_THE_DISK, path).split())
    assert kept + dropped == 1000
    items = list(read_record(path))
    assert not any(isinstance(item, Damage) for item in items)
    events = [item.event for item in items if isinstance(item, Frame)]
    assert isinstance(events[0], Header)
    assert [event.count for event in events if isinstance(event, Dropped)] == [dropped]
    assert [entry.step for entry in read_logged(path)] == [*range(kept), 1000]
    assert verify_record(path).sound
