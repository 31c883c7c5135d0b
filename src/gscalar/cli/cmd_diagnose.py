"""`gscalar diagnose`: what holds a training back, and what each fix is worth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

import gscalar.cli.one_thread  # noqa: F401  # before all that loads NumPy
from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.diagnosing import print_diagnosis
from gscalar.cli.references import load_runs
from gscalar.diagnosis.diagnose import diagnose
from gscalar.views.diagnose import FoundRun, diagnosis_json, open_timeline


@click.command("diagnose")
@click.argument("targets", metavar="RUN|TRACE...", nargs=-1, required=True)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one page with the timeline, the accounts, the evidence and the fixes.",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the timeline for Chrome's and Perfetto's trace viewers.",
)
@json_option
@common_options
def command(targets: tuple[str, ...], html: Path | None, trace: Path | None, as_json: bool, home: str | None) -> None:
    """Name what holds a training back, with evidence for and against, and predict what each fix is worth.

    RUN is an id, a unique prefix of one, or a name (the newest). TRACE is a file, or a directory of them: PyTorch's
    profiler (Kineto), Nsight Systems (sqlite), TensorFlow's and JAX's profiler (xplane), tables of operations
    (parquet, CSV). Files of several ranks of one training are read together.
    """
    _keep_inputs(targets, [each for each in (html, trace) if each is not None])
    timeline = open_timeline(targets, lambda reference: find_run(home, reference))
    found = diagnose(timeline)
    if trace is not None:
        from gscalar.views.perfetto import write_trace

        write_trace(timeline, trace)
    if html is not None:
        from gscalar.views.report import write_report

        write_report(timeline, found, html)
    if as_json:
        print_json(diagnosis_json(found))
    else:
        print_diagnosis(found)
        for path in (html, trace):
            if path is not None:
                click.echo(f"wrote {path}", err=True)


def _keep_inputs(targets: Sequence[str], written: Sequence[Path]) -> None:
    """Refuse to write over a trace that is to be read, and two files into one."""
    places = [os.path.realpath(path) for path in written]
    if len(set(places)) < len(places):
        raise click.UsageError(f"--html and --trace name the same file: {written[0]}")
    for target in targets:
        if os.path.realpath(target) in places:
            raise click.UsageError(f"{target} would be overwritten; name another file to write.")


def find_run(home_flag: str | None, reference: str) -> FoundRun:
    """Return a run by its id, prefix or name. Raises what `load_runs` raises."""
    home, (run,) = load_runs(home_flag, [reference])
    return FoundRun(run.name, home.run(run.id), run.measured.get("clocks") or {})
