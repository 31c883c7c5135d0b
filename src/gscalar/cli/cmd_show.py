"""`gscalar show`: one run."""

from __future__ import annotations

import shlex
from typing import Any

import click
from rich.text import Text

from gscalar.base.units import format_bytes, format_count, format_duration
from gscalar.cli.common import common_options, json_option, print_json
from gscalar.cli.costs import (
    account_rows,
    choose_look,
    clock_line,
    goodput_line,
    hardware_rows,
    lost_rows,
    percent,
    step_bar,
    step_notes,
    step_s,
)
from gscalar.cli.reading import lasted, local_time, make_console, number_text, print_table, status_text
from gscalar.cli.references import load_runs
from gscalar.model.roles import describe_gang
from gscalar.views.show import describe_whole


@click.command("show")
@click.argument("run", metavar="RUN")
@json_option
@common_options
def command(run: str, as_json: bool, home: str | None) -> None:
    """Show one run: where its time went, its values, attempts, metrics, checkpoints, digests, notes.

    RUN is an id, a unique prefix of one, or a name (the newest). Metrics are those of the lowest rank
    that logged them, without the steps that a later attempt repeated.
    """
    opened, (found,) = load_runs(home, [run])
    shown = describe_whole(opened, found)
    if as_json:
        print_json(shown)
    else:
        print_run(shown)


def print_run(run: dict[str, Any]) -> None:
    """Print a run for people."""
    title = Text.assemble((run["name"], "bold"), "  ", run["id"], "  ", status_text(run["status"]))
    make_console().print(title)
    print_table(("", ""), [[f"  {name}", text] for name, text in facts(run)])
    print_costs(run)
    for heading, columns, rows, right in (
        ("Values that are not the default", ("KEY", "VALUE", "FROM"), values(run), ()),
        ("Attempts", ("ATTEMPT", "OUTCOME", "WORLD", "FROM STEP", "STARTED", "TOOK"), attempts(run), ()),
        ("Metrics", ("NAME", "LAST", "MIN", "MAX", "COUNT"), metrics(run), ("LAST", "MIN", "MAX", "COUNT")),
        ("Checkpoints", ("STEP", "SIZE", "PATH", "SHA-256"), checkpoints(run), ("STEP", "SIZE")),
        ("Failures", ("ATTEMPT", "RANK", "STEP", "CLASS", "WHAT"), failures(run), ()),
        ("Digests", ("OF", "SHA-256"), [[k, v] for k, v in run["digests"].items() if v], ()),
        ("Notes", ("LEVEL", "NOTE"), notes(run), ()),
    ):
        if rows:
            make_console().print(Text(f"\n{heading}", style="bold"))
            print_table(columns, rows, right=right)


def print_costs(run: dict[str, Any]) -> None:
    """Print where the time went: a step, the run, and what the hardware did meanwhile."""
    console = make_console()
    colour = console.is_terminal and not console.no_color
    look = choose_look(colour=colour, unicode=console.encoding.startswith("utf"))
    if run["accounts"]:
        title = Text("\nA step", style="bold")
        console.print(title.append(f"  {format_duration(step_s(run['accounts']))}, mean over ranks", style="not bold"))
        console.print(Text("  ").append_text(step_bar(run["accounts"], look)))
        columns = ("", "ACCOUNT", "MEAN", "SHARE", "MAX OF A RANK")
        print_table(columns, account_rows(run["accounts"], look), right=columns[2:])
        for line in step_notes(run):
            console.print(Text(f"  {line}"))
    if run["goodput"]:
        title = Text("\nGoodput", style="bold")
        console.print(title.append(f"  {goodput_line(run['goodput'])}", style="not bold"))
        print_table(("  LOST TO", "TIME", "SHARE"), lost_rows(run["goodput"]), right=("TIME", "SHARE"))
    if run["hardware"]:
        console.print(Text("\nHardware", style="bold"))
        print_table(("  COUNTER", "MEAN", "MAX", "LAST"), hardware_rows(run["hardware"]), right=("MEAN", "MAX", "LAST"))


def facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines at the top."""
    of_total = f" of {run['total_steps']}" if run["total_steps"] else ""
    done = [f"{run['steps']}{of_total}"]
    if run["tokens"]:
        done.append(f"{format_count(run['tokens'])} tokens")
    throughput = dict(run["throughput"])
    utilization = throughput.pop("mfu")
    rates = [f"{format_count(rate)} {name.removesuffix('_per_s')}/s" for name, rate in throughput.items()]
    if utilization is not None:
        rates.append(f"MFU {percent(utilization)}")
    took = lasted(run["started"], run["ended"] or run["last_seen"])
    command_line = shlex.join(run["spec"].get("command") or ())
    tags = " ".join(f"{key}={value}" for key, value in run["tags"].items())
    lines = [
        ("project", run["project"]),
        ("command", command_line),
        ("tags", tags),
        ("created", local_time(run["created"])),
        ("took" if run["ended"] else "going for", took),
        ("steps", ", ".join(done)),
        ("world", _world(run)),
        ("throughput", ", ".join(rates)),
        ("clocks", clock_line(run["clocks"])),
        ("folder", run["folder"]),
        ("dropped", f"{run['dropped']} events could not be recorded" if run["dropped"] else ""),
        ("damage", damage_line(run["damage"])),
        (
            "no header",
            f"{', '.join(run['headerless'])}: empty or torn, no event can be read" if run["headerless"] else "",
        ),
        ("not finite", nonfinite_line(run["nonfinite"])),
    ]
    return [(name, text) for name, text in lines if text and text != "-"]


def damage_line(damage: dict[str, Any] | None) -> str:
    """Return what could not be read of the records, and what is not there, in a few words."""
    if damage is None:
        return ""
    unclosed, missing = damage.get("unclosed"), damage.get("missing")  # absent where an older version has looked
    parts = [
        f"{damage['bytes']} bytes of {', '.join(damage['files'])} cannot be read" if damage["files"] else "",
        f"{', '.join(unclosed)}: cut off before the end" if unclosed else "",
        f"no record of attempt/rank {', '.join(missing)}" if missing else "",
    ]
    return "; ".join(part for part in parts if part)


def nonfinite_line(nonfinite: dict[str, Any] | None) -> str:
    """Return where NaN or infinity came up in a few words."""
    if nonfinite is None:
        return ""
    where = f", first parameter {nonfinite['parameter']}" if nonfinite["parameter"] else ""
    return (
        f"{nonfinite['what']} {nonfinite['count']} times, first at step {nonfinite['step']} "
        f"on rank {nonfinite['rank']}{where}"
    )


def values(run: dict[str, Any]) -> list[list[str]]:
    """Return the spec's values that somebody has given, with who."""
    labels = ("name", "project", "command", "tags")
    return [
        [key, value_text(run["spec"], key), origin]
        for key, origin in sorted(run["origins"].items())
        if origin != "default" and key.partition(".")[0] not in labels
    ]


def value_text(spec: dict[str, Any], key: str) -> str:
    """Return the value of a dotted key as one line; hyperparameters may have dots in their own names."""
    value: Any = spec
    rest = key
    while rest:
        if isinstance(value, dict) and rest in value:
            value = value[rest]
            break
        head, _, rest = rest.partition(".")
        value = value.get(head) if isinstance(value, dict) else None
    return str(value)


def _world(run: dict[str, Any]) -> str:
    """Return the number of processes, and what they are where not all are workers."""
    roles = run["attempts"][-1]["roles"] if run["attempts"] else {}
    return f"{run['world']} ({describe_gang(roles)})" if len(roles) > 1 else str(run["world"])


def attempts(run: dict[str, Any]) -> list[list[str]]:
    """Return a row for each attempt."""
    return [
        [
            str(each["index"]),
            outcome_text(each),
            str(each["world"]),
            str(each["from_step"]),
            local_time(each["started"]),
            lasted(each["started"], each["ended"]),
        ]
        for each in run["attempts"]
    ]


def outcome_text(attempt: dict[str, Any]) -> str:
    """Return how an attempt ended, and why."""
    failure = attempt["failure"]
    outcome = attempt["outcome"] or "going"
    return f"{outcome}: {failure.get('kind')}" if failure and failure.get("kind") else outcome


def metrics(run: dict[str, Any]) -> list[list[str]]:
    """Return a row for each metric."""
    return [
        [name, *(number_text(each[key]) for key in ("last", "min", "max", "count"))]
        for name, each in run["metrics"].items()
    ]


def checkpoints(run: dict[str, Any]) -> list[list[str]]:
    """Return a row for each checkpoint that is there."""
    start = f"{run['folder']}/"
    return [
        [str(each["step"]), format_bytes(each["bytes"]), each["path"].removeprefix(start), each["sha256"][:16]]
        for each in run["checkpoints"]
    ]


def failures(run: dict[str, Any]) -> list[list[str]]:
    """Return a row for each failure that is not the consequence of another one."""
    return [
        [
            str(each["attempt"]),
            str(each["rank"]),
            str(each["step"]),
            each["failure_class"],
            f"{each['kind']}: {each['message']}".partition("\n")[0],
        ]
        for each in run["failures"]
        if not each["secondary"]
    ]


def notes(run: dict[str, Any]) -> list[list[str]]:
    """Return a row for each note."""
    return [
        [each["level"], each["text"] + (f" ({each['count']} times)" if each["count"] > 1 else "")]
        for each in run["notes"]
    ]
