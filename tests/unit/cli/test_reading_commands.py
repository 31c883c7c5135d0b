"""`runs`, `show`, `logs`, `tag`, `delete`, `doctor` from the words of the command line to what is printed."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.cli.main import main
from gscalar.cli.reading import print_table
from gscalar.control.indexer import rebuild
from gscalar.model import events
from gscalar.state.catalog import catalog
from gscalar.state.home import Home
from gscalar.testing.builders import FakeClock, RunBuilder, write_run
from gscalar.testing.catalog_damage import MISMATCHES, OLDER, damage_table, mismatch
from gscalar.views import doctor


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    code: int
    out: str
    err: str


class Command:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        code = main(list(words))
        said = self._capsys.readouterr()
        return Said(code=code, out=said.out, err=said.err)


@pytest.fixture
def gscalar(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def place(home: Path) -> Home:
    """A home with two runs that have ended and one that goes on elsewhere."""
    found = Home(home)
    clock = FakeClock()
    write_run(found, "aaaa00000000", spec={"name": "base"}, clock=clock)
    write_run(found, "bbbb00000000", spec={"name": "large"}, steps=9, status="failed", clock=clock)
    RunBuilder(found, "cccc00000000", spec={"name": "going"}, clock=clock).launch(2).train(3).abandon()
    return found


def write_log(home: Home, rank: int, content: str, *, run_id: str = "aaaa00000000") -> None:
    path = home.run(run_id).worker_log(0, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


# ---- runs


def test_runs_prints_a_table(gscalar: Command, place: Home) -> None:
    said = gscalar("runs")
    lines = said.out.splitlines()
    assert said.code == 0
    assert lines[0].split() == ["ID", "NAME", "PROJECT", "STATUS", "STEPS", "CREATED", "val/loss"]
    assert [line.split()[0] for line in lines[1:]] == ["cccc00000000", "bbbb00000000", "aaaa00000000"]
    assert lines[3].split()[1:5] == ["base", "demo", "completed", "5"]
    assert "\x1b" not in said.out


def test_runs_as_json(gscalar: Command, place: Home) -> None:
    found = json.loads(gscalar("runs", "--json").out)
    assert [run["status"] for run in found] == ["running", "failed", "completed"]
    assert all("spec" not in run and "environment" not in run for run in found)


FOUND: dict[str, tuple[list[str], list[str]]] = {
    "a word": (["large"], ["bbbb00000000"]),
    "a comparison": (["steps>=5", "status=completed"], ["aaaa00000000"]),
    "an order": (["--sort", "steps"], ["cccc00000000", "aaaa00000000", "bbbb00000000"]),
    "the order the other way round": (["--sort", "-steps"], ["bbbb00000000", "aaaa00000000", "cccc00000000"]),
    "a limit": (["--limit", "1"], ["cccc00000000"]),
    "another project": (["--project", "other"], []),
}


@pytest.mark.parametrize("sentence", FOUND)
def test_runs_finds(sentence: str, gscalar: Command, place: Home) -> None:
    words, want = FOUND[sentence]
    found = json.loads(gscalar("runs", "--json", *words).out)
    assert [run["id"] for run in found] == want


def test_runs_shows_the_metric_of_the_order(gscalar: Command, place: Home) -> None:
    assert "train/loss" in gscalar("runs", "--sort", "train/loss").out.splitlines()[0]


def test_runs_says_when_the_table_is_cut(gscalar: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gscalar.cli import cmd_runs

    monkeypatch.setattr(cmd_runs, "_TABLE_LIMIT", 2)
    for number in range(3):
        write_run(Home(home), f"run{number}", steps=1)
    said = gscalar("runs")
    assert len(said.out.splitlines()) == 3
    assert "--limit" in said.err
    assert len(json.loads(gscalar("runs", "--json").out)) == 3


def test_what_looks_like_markup_or_emoji_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [["[/x]"], ["[rank0]: a:100:b"]])
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == ["NAME", "[/x]", "[rank0]: a:100:b"]


def test_runs_of_an_empty_home(gscalar: Command, home: Path) -> None:
    said = gscalar("runs")
    assert (said.code, said.out, said.err) == (0, "", "No runs.\n")
    assert gscalar("runs", "--json").out == "[]\n"


def test_runs_hints_at_a_slip(gscalar: Command, place: Home) -> None:
    said = gscalar("runs", "val/los<3")
    assert said.code == 0
    assert "the nearest is val/loss" in said.err


# ---- show


def test_show_prints_what_people_ask_for(gscalar: Command, place: Home) -> None:
    said = gscalar("show", "base")
    assert said.code == 0
    for part in (
        "base  aaaa00000000  completed",
        "python train.py",
        "team=language",
        "5 of 100, 5.12 k tokens",
        "20 steps/s",
        "checkpoints/step-000000005",
        "ab" * 32,
    ):
        assert part in said.out
    values = [line.split() for line in said.out.splitlines() if line.startswith("config")]
    assert values == [["config.lr", "0.001", "spec"]]


def test_show_tells_what_went_wrong(gscalar: Command, home: Path) -> None:
    run = RunBuilder(Home(home)).launch(2).train(2)
    run.tell(events.Nonfinite(1, 2, 1, "gradient", "head.weight"), rank=1)
    run.tell(events.Dropped(1, 7, "disk full"), rank=0)
    run.tell(events.Note(1, "warning", "c", "The disk is slow."))
    with run.workers[0].path.open("ab") as file:
        file.write(b"\xff" * 20)
    run.train(1).fail("ValueError", "bad batch\nsecond line").end("failed")
    said = gscalar("show", run.run_id)
    for part in (
        "gradient 1 times, first at step 2 on rank 1, first parameter head.weight",
        "7 events could not be recorded",
        "20 bytes of a000-r00000.rec cannot be read",
        "failed: ValueError",
        "ValueError: bad batch",
        "The disk is slow. (2 times)",
    ):
        assert part in said.out
    assert "second line" not in said.out


def measured(home: Path) -> RunBuilder:
    """A run of two ranks of which everything is measured, with one file that nobody wrote to."""
    run = RunBuilder(Home(home)).launch(2)
    steps = ({"compute": 0.06, "exposed_communication": 0.04}, {"compute": 0.1})
    run.clock.advance(3.0)
    run.train(20, accounts=steps).sample({"host/cpu_cores": 1.5, "host/cpu_limit_cores": 2.0})
    run.tell(events.Clock(run.clock.advance(0.1), -0.002, 0.0, 0.0001, 9), rank=1)
    (run.folder.records / "a000-r00002.rec").touch()
    return run.finish().end()


def test_show_tells_where_the_time_went(gscalar: Command, home: Path) -> None:
    said = gscalar("show", measured(home).run_id)
    lines = [line.rstrip() for line in said.out.splitlines()]
    for line in (
        "  clocks      rank 1 -2.00 ms ± 100 us",
        "  no header   a000-r00002.rec: empty or torn, no event can be read",
        "A step  100 ms, mean over ranks",
        "  " + "█" * 58 + "▓" * 14,
        "  █  compute                80.0 ms  80.0 %         100 ms",
        "  ▓  exposed communication  20.0 ms  20.0 %        40.0 ms",
        "  slowest: rank 1, 100 ms before its last collective, 67 % over the median",
        "Goodput  31.2 %: 2.00 s of 6.41 s in steps that count",
        "  start    3.10 s  48.4 %",
        "  host/cpu_cores of 2.00  1.50  1.50  1.50",
    ):
        assert line in lines
    assert "\x1b" not in said.out


def test_what_show_says_of_time_fits_a_terminal_of_80_columns(
    gscalar: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = gscalar("show", measured(home).run_id)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said.out)
    block = plain[plain.index("A step") : plain.index("Values that")]
    assert max(map(len, block.splitlines())) <= 80
    assert "…" not in block
    assert "  " + "█" * 72 in block
    assert said.out != plain


def test_marks_are_ascii_where_the_output_takes_no_more(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = measured(home).run_id
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1", write_through=True))
    code = main(["show", run_id])
    assert code == 0
    assert b"#" * 58 + b"%" * 14 in written.getvalue()


@pytest.mark.parametrize("reference", ["aaaa00000000", "aa", "base"])
def test_show_as_json_by_id_prefix_or_name(reference: str, gscalar: Command, place: Home) -> None:
    shown = json.loads(gscalar("show", reference, "--json").out)
    assert (shown["id"], shown["steps"], shown["seed"]) == ("aaaa00000000", 5, 7)


@pytest.mark.parametrize("verb", ["show", "logs", "delete", "tag"])
def test_an_unknown_run_is_wrong_usage_and_the_nearest_is_offered(verb: str, gscalar: Command, place: Home) -> None:
    said = gscalar(verb, "bose", *(["a=b"] if verb == "tag" else []))
    assert (said.code, said.out) == (2, "")
    assert "[run-not-found]" in said.err
    assert "base" in said.err


def test_a_home_that_cannot_be_written_is_a_problem_of_the_environment(gscalar: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = gscalar("runs", "--home", str(tmp_path / "file"))
    assert said.code == 3
    assert "[home-not-writable]" in said.err


# ---- logs


def test_logs_are_prefixed_by_rank(gscalar: Command, place: Home) -> None:
    write_log(place, 0, "one\ntwo\n")
    write_log(place, 1, "three\n")
    assert gscalar("logs", "base").out == "[rank 0] one\n[rank 0] two\n[rank 1] three\n"


def test_logs_of_one_rank_are_as_they_were_written(gscalar: Command, place: Home) -> None:
    write_log(place, 0, "one\n")
    write_log(place, 1, "  three\n")
    assert gscalar("logs", "base", "--rank", "1").out == "  three\n"


def test_logs_as_json_are_a_line_an_object(gscalar: Command, place: Home) -> None:
    write_log(place, 0, 'a "word"\n')
    got = [json.loads(line) for line in gscalar("logs", "base", "--json").out.splitlines()]
    assert got == [{"attempt": 0, "rank": 0, "text": 'a "word"'}]


def test_logs_that_are_followed_end_with_the_run(
    gscalar: Command, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gscalar.cli import cmd_logs

    monkeypatch.setattr(cmd_logs.time, "sleep", lambda seconds: None)
    write_log(place, 0, "one\n")
    assert gscalar("logs", "base", "-f").out == "[rank 0] one\n"


def test_logs_of_a_script_that_ran_alone_are_explained(gscalar: Command, place: Home) -> None:
    said = gscalar("logs", "base")
    assert said.code == 2
    assert "[no-logs]" in said.err


# ---- tag


def test_tags_are_set_and_removed(gscalar: Command, place: Home) -> None:
    said = gscalar("tag", "base", "stage=final", "team-")
    assert (said.code, said.out) == (0, "stage=final\n")
    assert json.loads(gscalar("show", "base", "--json").out)["tags"] == {"stage": "final"}
    assert "base" in gscalar("runs", "stage=final").out


def test_a_run_that_goes_on_can_be_tagged(gscalar: Command, place: Home) -> None:
    assert "stage=draft" in gscalar("tag", "going", "stage=draft").out


BAD_TAGS: dict[str, Sequence[str]] = {
    "a word alone": ("final",),
    "a name of blanks": ("a b=c",),
    "no name": ("=c",),
    "a name that begins with a dash": ("--", "-a=b"),
    "the same name twice": ("a=1", "a-"),
    "a value without end": ("a=" + "x" * 8001,),
}


@pytest.mark.parametrize("sentence", BAD_TAGS)
def test_bad_tags_change_nothing(sentence: str, gscalar: Command, place: Home) -> None:
    said = gscalar("tag", "base", *BAD_TAGS[sentence])
    assert said.code == 2
    assert "[bad-tag]" in said.err
    assert not list(place.run("aaaa00000000").records.glob("edit-*"))


# ---- delete


def test_a_deleted_run_is_gone_with_its_folder(gscalar: Command, place: Home) -> None:
    assert gscalar("delete", "base", "--yes").code == 0
    assert not place.run("aaaa00000000").path.exists()
    assert not list(place.runs.glob(".deleted-*"))
    assert "deleted" in gscalar("show", "aaaa00000000").err
    rebuild(place)
    assert "base" not in gscalar("runs").out


def test_deleting_asks_first_and_needs_somebody_to_ask(
    gscalar: Command, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    said = gscalar("delete", "base")
    assert said.code == 2
    assert "[not-confirmed]" in said.err
    assert place.run("aaaa00000000").path.exists()


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, False), ("n\n", 130, True)])
def test_deleting_does_what_is_answered(
    answer: str, code: int, left: bool, gscalar: Command, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    said = gscalar("delete", "base")
    assert said.code == code
    assert place.run("aaaa00000000").path.exists() is left


def test_a_run_that_goes_on_is_not_deleted(gscalar: Command, place: Home) -> None:
    said = gscalar("delete", "going", "--yes")
    assert said.code == 2
    assert "[run-active]" in said.err
    assert place.run("cccc00000000").path.exists()


def test_what_a_crash_left_of_a_deletion_is_swept(gscalar: Command, place: Home) -> None:
    left = place.runs / ".deleted-x-1"
    (left / "records").mkdir(parents=True)
    gscalar("delete", "base", "--yes")
    assert not left.exists()


# ---- doctor


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_loopback", lambda: iter(()))


@pytest.mark.usefixtures("no_sockets")
def test_doctor_of_a_healthy_machine(gscalar: Command, place: Home) -> None:
    said = gscalar("doctor", "--json")
    report = json.loads(said.out)
    assert said.code == 0
    assert report["healthy"]
    names = {check["name"] for check in report["checks"]}
    assert {"python", "cores", "memory", "packages", "gpus", "slurm", "home", "disk", "file system", "catalog"} <= names
    assert "ok" in gscalar("doctor").out


@pytest.mark.usefixtures("no_sockets")
def test_doctor_exits_with_3_where_something_needed_is_broken(gscalar: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = gscalar("doctor", "--home", str(tmp_path / "file"))
    assert said.code == 3
    assert "home: Give a writable folder" in said.err


@pytest.mark.usefixtures("no_sockets")
def test_doctor_rebuilds_the_catalog(gscalar: Command, place: Home) -> None:
    before = gscalar("runs", "--json").out
    said = gscalar("doctor", "--rebuild")
    assert said.code == 0
    assert "3 runs" in said.err
    assert gscalar("runs", "--json").out == before


def test_a_record_that_is_missing_is_shown(gscalar: Command, place: Home) -> None:
    run = RunBuilder(place, "lost1111").launch(2).train(2).finish().end()
    run.folder.worker_record(0, 1).unlink()
    assert "no record of attempt/rank 0/1" in gscalar("show", "lost1111").out
    assert json.loads(gscalar("show", "lost1111", "--json").out)["damage"]["missing"] == ["0/1"]


# ---- a damaged catalog


def test_a_damaged_catalog_is_built_anew_with_a_word(gscalar: Command, place: Home) -> None:
    before = gscalar("runs", "--json").out
    place.index.write_bytes(b"no database" * 1000)
    said = gscalar("runs", "--json")
    assert said.out == before
    assert "built anew from the records" in said.err
    assert gscalar("runs").err == ""


def test_damage_inside_the_catalog_is_built_anew_too(gscalar: Command, place: Home) -> None:
    before = gscalar("runs", "--json").out
    damage_table(place.index, "runs")
    said = gscalar("runs", "--json")
    assert said.out == before
    assert "built anew" in said.err


@pytest.mark.parametrize("sentence", MISMATCHES)
@pytest.mark.parametrize("words", [("runs", "--json"), ("show", "base", "--json")], ids=" ".join)
def test_a_catalog_that_is_not_what_it_says_is_built_anew_or_explained(
    words: tuple[str, ...], sentence: str, gscalar: Command, place: Home
) -> None:
    before = gscalar(*words).out
    mismatch(place.index, MISMATCHES[sentence])
    said = gscalar(*words)
    if said.code == 0:
        assert said.out == before
        assert "built anew" in said.err
    else:
        assert said.code == 3
        assert "[catalog-damaged]" in said.err
        assert "gscalar doctor --rebuild" in said.err


def test_a_catalog_that_cannot_be_migrated_says_what_to_do(gscalar: Command, place: Home) -> None:
    gscalar("runs")
    mismatch(place.index, *OLDER.values())
    said = gscalar("runs")
    assert said.code == 3
    assert "gscalar doctor --rebuild" in said.err


# ---- a home that does not exist

OF_NO_HOME = {
    ("runs",): 0,
    ("show", "x"): 2,
    ("metrics", "x"): 2,
    ("compare", "x", "y"): 2,
    ("logs", "x"): 2,
    ("tag", "x", "a=b"): 2,
    ("delete", "x", "--yes"): 2,
}


@pytest.mark.parametrize("words", OF_NO_HOME, ids=" ".join)
def test_a_home_that_does_not_exist_is_not_made(
    words: tuple[str, ...], gscalar: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSCALAR_INDEX", str(tmp_path / "elsewhere" / "index.db"))
    said = gscalar(*words, "--home", str(tmp_path / "none"))
    assert said.code == OF_NO_HOME[words]
    assert not said.code or "[run-not-found]" in said.err
    assert not list(tmp_path.iterdir())


def test_a_newer_catalog_is_refused(gscalar: Command, place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Home) -> None:
        raise EnvironmentProblem(code="store-newer", what="It is newer.")

    monkeypatch.setattr(catalog, "open_catalog", refuse)
    assert gscalar("runs").code == 3
