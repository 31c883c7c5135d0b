"""Several processes use one home at once: nothing is counted twice, nothing is lost, nobody waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gscalar.control.indexer import rebuild
from gscalar.state.catalog import Catalog, open_catalog, schema
from gscalar.state.home import Home
from gscalar.testing.builders import RunBuilder, write_run

Spawn = Callable[..., subprocess.Popen[Any]]

# Writes a run and refreshes the whole home after every few steps.
WRITER = """
import sys
from gscalar.control.indexer import refresh
from gscalar.state.catalog import open_catalog
from gscalar.state.home import locate_home
from gscalar.testing.builders import RunBuilder

home = locate_home()
run = RunBuilder(home, sys.argv[1]).launch(2)
for turn in range(int(sys.argv[2])):
    run.train(3).log({"turn": turn})
    with open_catalog(home) as catalog:
        refresh(home, catalog)
run.finish().end()
with open_catalog(home) as catalog:
    refresh(home, catalog)
"""

# Refreshes one home until it is stopped.
READER = """
from gscalar.control.indexer import refresh
from gscalar.state.catalog import open_catalog
from gscalar.state.home import locate_home

home = locate_home()
print("ready", flush=True)
while True:
    with open_catalog(home) as catalog:
        refresh(home, catalog)
"""

# Keeps one run's rows fresh as a supervisor does, until its standard input ends.
KEEPER = """
import sys, threading
from gscalar.control.indexer import Indexer
from gscalar.state.home import locate_home

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
indexer = Indexer(locate_home(), sys.argv[1], is_alive=lambda owner: True)
indexer.tick()
print("ready", flush=True)
while not ended.wait(0.05):
    indexer.tick()
indexer.close()
sys.exit(1 if indexer.problem else 0)
"""


def python(code: str, *words: str) -> list[str | Path]:
    return [sys.executable, "-c", code, *words]


def gscalar(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gscalar", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def listed() -> dict[str, dict[str, Any]]:
    done = gscalar("runs", "--json")
    assert done.returncode == 0, done.stderr
    return {run["id"]: run for run in json.loads(done.stdout)}


def dump(catalog: Catalog) -> dict[str, list[Any]]:
    looks = {"settled_mtime_ns", "mtime_ns", "size"}
    with catalog.read() as connection:
        return {
            table.name: [
                {key: value for key, value in row.items() if key not in looks}
                for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            ]
            for table in schema.metadata.sorted_tables
        }


def wait_for_line(process: subprocess.Popen[Any]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"ready"


def test_two_processes_that_make_the_home_write_and_refresh_it_at_once(home: Path, spawn: Spawn) -> None:
    writers = [spawn(python(WRITER, run_id, "15"), stderr=subprocess.PIPE) for run_id in ("one", "two")]
    for writer in writers:
        _, said = writer.communicate(timeout=120)
        assert writer.returncode == 0, said.decode()
    runs = listed()
    assert {run_id: run["status"] for run_id, run in runs.items()} == {"one": "completed", "two": "completed"}
    for run in runs.values():
        assert run["metrics"]["turn"] == {"last": 14.0, "min": 0.0, "max": 14.0, "count": 15}
        assert run["steps"] == run["metrics"]["train/loss"]["count"] == 45
    with open_catalog(Home(home)) as catalog:
        before = dump(catalog)
        rebuild(Home(home))
        assert dump(catalog) == before


def test_two_readers_of_one_run_count_nothing_twice(home: Path, spawn: Spawn) -> None:
    run = RunBuilder(Home(home), "one").launch(2)
    readers = [spawn(python(READER), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for reader in readers:
        wait_for_line(reader)
    for turn in range(60):
        run.train(2).log({"turn": turn})
        time.sleep(0.01)
    run.finish().end()
    got = listed()["one"]
    for reader in readers:
        assert reader.poll() is None, reader.stderr and reader.stderr.read().decode()
    assert got["metrics"]["turn"] == {"last": 59.0, "min": 0.0, "max": 59.0, "count": 60}
    assert got["steps"] == got["metrics"]["train/loss"]["count"] == 120


def test_a_reader_that_is_killed_at_any_instant_leaves_a_sound_catalog(home: Path, spawn: Spawn) -> None:
    run = RunBuilder(Home(home), "one").launch()
    for turn in range(8):
        reader = spawn(python(READER), stdout=subprocess.PIPE)
        wait_for_line(reader)
        run.train(5).log({"turn": turn})
        time.sleep(0.003 * turn)
        os.killpg(reader.pid, signal.SIGKILL)
        reader.wait(timeout=10)
    run.finish().end()
    got = listed()["one"]
    assert got["steps"] == got["metrics"]["train/loss"]["count"] == 40
    assert got["metrics"]["turn"]["count"] == 8


def test_an_index_that_is_deleted_under_a_running_indexer_is_made_anew(home: Path, spawn: Spawn) -> None:
    run = RunBuilder(Home(home), "one").launch().train(3)
    write_run(Home(home), "two")
    keeper = spawn(python(KEEPER, "one"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_for_line(keeper)
    for path in home.glob("index.db*"):
        path.unlink()
    assert listed()["one"]["steps"] == 3
    run.train(4).finish().end()
    assert keeper.stdin is not None
    keeper.stdin.close()
    assert keeper.wait(timeout=30) == 0
    runs = listed()
    assert (runs["one"]["steps"], runs["one"]["status"]) == (7, "completed")
    assert runs["two"]["metrics"]["val/loss"]["count"] == 1
    assert not list(home.glob("index.db.damaged-*"))


def test_a_corrupted_index_is_rebuilt_once_by_whoever_comes_first(home: Path, spawn: Spawn) -> None:
    for number in range(5):
        write_run(Home(home), f"run{number}", world=2, steps=20)
    before = listed()
    (home / "index.db").write_bytes(b"not a database" * 4096)
    command = [sys.executable, "-m", "gscalar", "runs", "--json"]
    readers = [spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    for reader in readers:
        out, err = reader.communicate(timeout=60)
        assert reader.returncode == 0, err.decode()
        assert {run["id"]: run for run in json.loads(out)} == before
    assert len(list(home.glob("index.db.damaged-*"))) == 1


def test_a_run_that_is_deleted_while_others_index_it_stays_deleted(home: Path, spawn: Spawn) -> None:
    write_run(Home(home), "one", world=2, steps=200)
    write_run(Home(home), "two")
    readers = [spawn(python(READER), stdout=subprocess.PIPE) for _ in range(2)]
    for reader in readers:
        wait_for_line(reader)
    done = gscalar("delete", "one", "--yes")
    assert done.returncode == 0, done.stderr
    time.sleep(0.2)
    assert list(listed()) == ["two"]
    assert gscalar("show", "one").returncode == 2
    assert not (home / "runs" / "one").exists()


def test_the_owner_that_is_killed_leaves_an_interrupted_run(home: Path, spawn: Spawn) -> None:
    code = """
import psutil, socket, os, sys
from gscalar.state.home import locate_home
from gscalar.testing.builders import RunBuilder

run = RunBuilder(locate_home(), "one")
run.host, run.pid, run.pid_start = socket.gethostname(), os.getpid(), psutil.Process().create_time()
run.launch().train(3)
print("ready", flush=True)
sys.stdin.read()
"""
    owner = spawn(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_for_line(owner)
    assert listed()["one"]["status"] == "running"
    os.killpg(owner.pid, signal.SIGKILL)
    # It is a zombie now, since nobody has waited for it.
    deadline = time.monotonic() + 5
    while listed()["one"]["status"] == "running" and time.monotonic() < deadline:
        pass
    got = listed()["one"]
    assert (got["status"], got["attempts"][0]["outcome"], got["steps"]) == ("interrupted", "killed", 3)


def test_doctor_on_this_machine(home: Path) -> None:
    done = gscalar("doctor", "--json")
    report = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stderr
    assert report["loopback"]["state"] == "ok"
    assert report["packages"]["state"] == "ok"


def test_logs_follow_a_run_until_its_end(home: Path, spawn: Spawn) -> None:
    place = Home(home)
    run = RunBuilder(place, "one").launch().train(1)
    log = place.run("one").worker_log(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    reader = spawn([sys.executable, "-m", "gscalar", "logs", "one", "-f"], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"[rank 0] one\n"
    with log.open("a") as file:
        file.write("two\n")
    assert reader.stdout.readline() == b"[rank 0] two\n"
    with log.open("a") as file:
        file.write("three")
    run.finish().end()
    assert reader.stdout.read() == b"[rank 0] three\n"
    assert reader.wait(timeout=10) == 0
