"""`gscalar whatif`: the step as it would be."""

from __future__ import annotations

import re
from typing import Any, Final

import click

import gscalar.cli.one_thread  # noqa: F401  # before all that loads NumPy
from gscalar.base.units import format_duration
from gscalar.cli.cmd_diagnose import find_run
from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.diagnosing import print_fixes
from gscalar.diagnosis.verdicts import FIX_NAMES
from gscalar.diagnosis.whatif import Question, answer
from gscalar.views.diagnose import forecast_json, open_timeline

SLOWEST_LINK, FASTEST_LINK = 1 / 8, 1e18  # bytes a second
_UNITS: Final = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


class Bandwidth(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A bandwidth such as 10Gbit or 1.2GB (a second), as bytes a second."""

    name = "bandwidth"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return bytes a second."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(bit|bps|b)(?:/s|ps)?\s*", str(value), re.IGNORECASE)
        try:
            number = float(found[1]) if found else 0.0
        except ValueError:
            number = 0.0
        if found is None or number <= 0:
            self.fail(f"{value!r} is no bandwidth; write 10Gbit, or 1.2GB for bytes.", param, ctx)
        is_bits = found[3].lower() == "bit" or found[3].startswith("b")  # Gbps are bits, GBps bytes
        bytes_per_s = number * _UNITS[found[2].lower()] / (8 if is_bits else 1)
        if not SLOWEST_LINK <= bytes_per_s <= FASTEST_LINK:
            self.fail(f"{value!r} is out of range: from 1bit to 1000000TB.", param, ctx)
        return bytes_per_s


@click.command("whatif")
@click.argument("targets", metavar="RUN|TRACE...", nargs=-1, required=True)
@click.option(
    "--fix", "fixes", metavar="FIX", multiple=True, help=f"One of {', '.join(FIX_NAMES)} (repeatable: all together)."
)
@click.option("--workers", metavar="N", type=int, help="On so many workers, each with its batch as it is.")
@click.option("--link", metavar="BANDWIDTH", type=Bandwidth(), help="Over a link such as 10Gbit.")
@click.option("--batch", metavar="N", type=int, help="With so many samples in a worker's step.")
@json_option
@common_options
def command(
    targets: tuple[str, ...], fixes: tuple[str, ...], workers: int | None, link: float | None, batch: int | None,
    as_json: bool, home: str | None,
) -> None:  # fmt: skip
    """Predict the step with fixes applied, on more workers, over another link or with another batch, all together.

    RUN and TRACE are as for `gscalar diagnose`.
    """
    question = Question(fixes=fixes, workers=workers, link_bytes_per_s=link, batch=batch)
    if question == Question():
        raise click.UsageError("Ask something: --fix, --workers, --link or --batch.")
    timeline = open_timeline(targets, lambda reference: find_run(home, reference))
    found = answer(timeline, question)
    if as_json:
        print_json({
            **forecast_json(found.forecast), "replayed_step_s": found.replayed_step_s, "remarks": list(found.remarks),
        })  # fmt: skip
        return
    click.echo(f"The measured step, replayed: {format_duration(found.replayed_step_s)} (mean)")
    print_fixes([found.forecast])
    for remark in found.remarks:
        click.echo(f"Note: {remark}")
