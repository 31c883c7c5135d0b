"""Where the time of a run went, as text: the accounts of a step as a bar, goodput, hardware and clocks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

from gscalar.base.units import format_bytes, format_count, format_duration
from gscalar.model.accounts import ACCOUNTS
from gscalar.model.hardware import HARDWARE

BAR_WIDTH: Final = 72
# Each account looks the same in every run: by colour on a terminal, by its mark elsewhere.
_COLOURS: Final = ("green", "red", "yellow", "magenta", "blue", "cyan", "bright_red", "white", "bright_black")
_MARKS: Final = "█▓▒░#=+-."
_ASCII_MARKS: Final = "#%:*o=+-."
_WORDS: Final = {"h2d": "copy to the device", "gc": "garbage collection", "host_gap": "script between steps"}
# What is less than this share is not worth a line.
_LEAST: Final = 0.0005
_MOST_RANKS: Final = 4


def account_word(name: str) -> str:
    """Return an account or a part of lost time in words."""
    return _WORDS.get(name, name.replace("_", " "))


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


# ---- a step


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How accounts are told apart: mark and style by name."""

    marks: dict[str, str]
    styles: dict[str, str]

    def draw(self, name: str, cells: int = 1) -> Text:
        """Return a stretch of an account."""
        return Text(self.marks[name] * cells, style=self.styles[name])


def choose_look(*, colour: bool, unicode: bool) -> Look:
    """Return the look for a terminal with colours, for plain text, or for text of ASCII alone."""
    marks = "█" * len(ACCOUNTS) if colour and unicode else _MARKS if unicode else _ASCII_MARKS
    styles = _COLOURS if colour else [""] * len(ACCOUNTS)
    return Look(
        marks=dict(zip(ACCOUNTS, marks, strict=True)),
        styles=dict(zip(ACCOUNTS, styles, strict=True)),
    )


def step_bar(accounts: Mapping[str, Mapping[str, float]], look: Look) -> Text:
    """Return the mean step as one stacked bar."""
    cells = spread([each["mean"] for each in accounts.values()], BAR_WIDTH)
    return Text().join(look.draw(name, num) for name, num in zip(accounts, cells, strict=True))


def spread(amounts: Sequence[float], width: int) -> list[int]:
    """Return whole cells in proportion to the amounts that sum to `width`; the largest remainders are rounded up."""
    total = math.fsum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [width * max(0.0, amount) / total for amount in amounts]
    cells = [int(each) for each in exact]
    left = width - sum(cells)
    for place in sorted(range(len(exact)), key=lambda each: cells[each] - exact[each])[: max(0, left)]:
        cells[place] += 1
    return cells


def account_rows(accounts: Mapping[str, Mapping[str, float]], look: Look) -> list[list[str | Text]]:
    """Return a row for each account that matters, the largest first: mark, name, mean, share, greatest of a rank."""
    total_s = step_s(accounts)
    return [
        [
            Text("  ").append_text(look.draw(name)),
            account_word(name),
            format_duration(each["mean"]),
            percent(each["mean"] / total_s),
            format_duration(each["max"]),
        ]
        for name, each in sorted(accounts.items(), key=lambda item: -item[1]["mean"])
        if total_s > 0 and each["mean"] >= _LEAST * total_s
    ]


def step_s(accounts: Mapping[str, Mapping[str, float]]) -> float:
    """Return the mean duration of a step."""
    return math.fsum(each["mean"] for each in accounts.values())


def step_notes(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the accounts alone do not tell: what communication waits for, and for whom."""
    split = run["exposed_split"]
    if split:
        yield (
            f"communication: {format_duration(split['wait'])} waiting for the last rank, "
            f"{format_duration(split['transfer'])} moving bytes"
        )
    slowest = run["slowest"]
    if slowest:
        lead = slowest["busy_s"] / slowest["median_s"] - 1 if slowest["median_s"] > 0 else math.inf
        yield (
            f"slowest: rank {slowest['rank']}, {format_duration(slowest['busy_s'])} before its last collective, "
            f"{100 * lead:.0f} % over the median"
        )


def costliest(run: Mapping[str, Any]) -> str:
    """Return what takes most of a step, and what is next, in one line; empty where nobody has measured."""
    accounts = run["accounts"]
    if not accounts or step_s(accounts) <= 0:
        return ""
    first, *rest = sorted(accounts, key=lambda name: -accounts[name]["mean"])
    parts = [f"{_share_text(run, first)}, {format_duration(accounts[first]['mean'])}"]
    parts += [
        f"next: {_share_text(run, name)}" for name in rest[:1] if accounts[name]["mean"] >= 0.005 * step_s(accounts)
    ]
    return f"most of a step: {'; '.join(parts)}"


def _share_text(run: Mapping[str, Any], name: str) -> str:
    accounts = run["accounts"]
    reason = _reason(run) if name == "exposed_communication" else ""
    return f"{account_word(name)} {100 * accounts[name]['mean'] / step_s(accounts):.0f} %{reason}"


def _reason(run: Mapping[str, Any]) -> str:
    """Return what exposed communication is, where it is known: mostly waiting, or mostly moving bytes."""
    split, slowest = run["exposed_split"], run["slowest"]
    if split and split["transfer"] >= split["wait"]:
        return " (moving bytes)"
    if slowest:
        return f" (waiting for rank {slowest['rank']})"
    return " (waiting for the last rank)" if split else ""


# ---- the run


def goodput_line(goodput: Mapping[str, Any]) -> str:
    """Return the goodput in one line."""
    return (
        f"{percent(goodput['ratio'])}: {format_duration(goodput['productive_s'])} of "
        f"{format_duration(goodput['total_s'])} in steps that count"
    )


def lost_parts(goodput: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return what was lost to what, in seconds, the most first; parts too small to matter are left out."""
    known = [(name, seconds) for name, seconds in goodput["lost"].items() if seconds]
    return sorted(
        (each for each in known if each[1] >= _LEAST * goodput["total_s"]), key=lambda each: each[1], reverse=True
    )


def lost_rows(goodput: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each part that was lost."""
    return [
        [f"  {account_word(name)}", format_duration(seconds), percent(seconds / goodput["total_s"])]
        for name, seconds in lost_parts(goodput)
    ]


def clock_line(clocks: Mapping[str, Mapping[str, float]]) -> str:
    """Return how far ranks' clocks are from rank 0's, the furthest first; empty where nothing was measured."""
    measured = {rank: each for rank, each in clocks.items() if each["bound_s"] > 0}
    furthest = sorted(measured.items(), key=lambda item: -abs(item[1]["offset_s"]))
    parts = [
        f"rank {rank} {'+' if each['offset_s'] >= 0 else ''}{format_duration(each['offset_s'])}"
        f" ± {format_duration(each['bound_s'])}"
        for rank, each in furthest[:_MOST_RANKS]
    ]
    return ", ".join(parts) + (f", {len(furthest) - _MOST_RANKS} closer" if len(furthest) > _MOST_RANKS else "")


# ---- hardware


def hardware_rows(hardware: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each counter: of the host, then of the first workers."""
    rows = list(_counter_rows(hardware["host"], ""))
    ranks = list(hardware["workers"])
    for rank in ranks[:_MOST_RANKS]:
        rows += _counter_rows(hardware["workers"][rank], f" rank {rank}")
    if len(ranks) > _MOST_RANKS:
        rows.append([f"  {len(ranks) - _MOST_RANKS} more workers: --json", "", "", ""])
    return rows


def _counter_rows(counters: Mapping[str, Mapping[str, float]], whose: str) -> Iterator[list[str]]:
    for name, each in counters.items():
        if "_limit" in name or name.endswith("throttle_reasons"):
            continue
        sizes = (each for each in ("_bytes", "_cores") if name.endswith(each))
        limit = next((counters.get(f"{name.removesuffix(size)}_limit{size}") for size in sizes), None)
        of = f" of {amount_text(name, limit['last'])}" if limit else ""
        yield [f"  {name}{whose}{of}", *(amount_text(name, each[key]) for key in ("mean", "max", "last"))]


def amount_text(name: str, value: float) -> str:
    """Return a counter's value with its unit."""
    metric = HARDWARE.get(re.sub(r"^gpu\d+", "gpu*", name))
    unit = metric.unit if metric else "1"
    if unit.startswith("byte"):
        return format_bytes(value) + unit.removeprefix("byte")
    if name.endswith("_ratio"):
        return percent(value)
    if unit == "1":
        return f"{value:.2f}"
    if unit == "Hz":
        return f"{format_count(value)}Hz"
    return f"{format_count(value)} {'°C' if unit == 'Cel' else unit}"
