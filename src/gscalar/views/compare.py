"""Runs side by side: what they were asked for and where they ran, what came out, where the time went, and the first
step at which trainings that should be equal are not.

`gscalar compare --json` gives exactly these keys; new ones may come, none goes or changes its meaning. Lists called
`values`, `seconds`, `shares` and `ratios` have one element a run, in the order given; null is what a run does not have.
Ratios are to the first run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gscalar.state.series import SeriesInfo
from gscalar.views.directions import find_direction
from gscalar.views.divergence import BUDGET_POINTS, Comparison, comparable_pairs, compare_series
from gscalar.views.metrics import Choice, RunSeries, choose_series

RATES: Final = ("steps_per_s", "samples_per_s", "tokens_per_s", "mfu")
# Of a run's own values these are told at the top or differ in every run.
_LABELS: Final = ("name", "project", "tags", "version")
_SECTIONS: Final = {
    "git": "code",
    "command": "code",
    "packages": "packages",
    "python": "machine",
    "os": "machine",
    "cpu": "machine",
    "memory": "machine",
    "limits": "machine",
    "gpus": "machine",
    "variables": "variables",
}
# These differ in every run, or another line says it better; `everything` shows them.
_NOISE: Final = frozenset(
    [
        "command.argv", "command.cwd", "command.executable", "command.entry_point", "git.branch", "git.remote",
        "os.host", "python.prefix", "python.build", "python.compiler", "variables.RANK", "variables.LOCAL_RANK",
        "variables.VIRTUAL_ENV",
    ]
)  # fmt: skip
_NOISY: Final = ("variables.GSCALAR_", "variables.MASTER_", "variables.SLURM_JOB", "variables.SLURM_STEP")


def compare_runs(
    runs: Sequence[Mapping[str, Any]], series: Sequence[RunSeries], *, everything: bool = False
) -> dict[str, Any]:
    """Return the comparison of runs, as `gscalar show` describes them, with their open series."""
    return {
        "runs": [_head(run) for run in runs],
        "digests": compare_digests(runs),
        "divergence": [
            find_divergence((runs[0], other), (series[0], found), everything=everything)
            for other, found in zip(runs[1:], series[1:], strict=True)
        ],
        "configuration": compare_configuration(runs, everything=everything),
        "metrics": compare_metrics(series),
        "accounts": compare_accounts(runs),
        "throughput": compare_throughput(runs),
        "goodput": compare_goodput(runs),
    }


def _head(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in ("id", "name", "project", "status", "created", "steps", "world", "seed")}


# ---- what was asked for, and where it ran


def compare_configuration(runs: Sequence[Mapping[str, Any]], *, everything: bool) -> list[dict[str, Any]]:
    """Return the values of spec, code, model, packages and machine: those that differ, or all.

    Each is `{section, key, values, equal}`.
    """
    flat = [dict(_settings(run)) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    order = ("spec", "code", "model", "packages", "machine", "variables")
    found = []
    for section, key in sorted(keys, key=lambda each: (order.index(each[0]), each[1])):
        values = [each.get((section, key)) for each in flat]
        equal = all(_same(values[0], other) for other in values[1:])
        if everything or not (equal or key in _NOISE or key.startswith(_NOISY)):
            found.append({"section": section, "key": key, "values": values, "equal": equal})
    return found


def _settings(run: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield section, dotted key and value of all that may make one run another."""
    spec = {key: value for key, value in run["spec"].items() if key not in _LABELS}
    parts = [("spec", spec), ("spec", {"tags": run["tags"]}), ("model", run["facts"])]
    parts += [(_SECTIONS.get(name, "machine"), {name: value}) for name, value in run["environment"].items()]
    for section, values in parts:
        for key, value in flatten(values):
            yield (section, key), value


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value by its dotted key; a list is one value, unless it holds mappings."""
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, list) and any(isinstance(each, dict) for each in item):
            item = {str(place): each for place, each in enumerate(item)}
        if isinstance(item, dict):
            yield from flatten(item, f"{name}.")
        else:
            yield name, item


def _same(first: Any, second: Any) -> bool:
    # 1, 1.0 and true are equal to Python, and not to a training.
    nan = isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second)
    return nan or (type(first) is type(second) and bool(first == second))


# ---- what came out


def compare_digests(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the digests of weights, data and spec, each `{values, equal}`; equal is null unless all are known."""
    found = {}
    for name in ("weights", "data", "spec"):
        values = [run["digests"].get(name) for run in runs]
        found[name] = {"values": values, "equal": None if None in values else len(set(values)) == 1}
    return found


def compare_metrics(series: Sequence[RunSeries]) -> list[dict[str, Any]]:
    """Return each metric that any run has: last value with its step, least, greatest, and the best where that is known.

    Each is `{name, direction, better, runs}`; `better` is the place of the run with the best value, null where the
    direction is not known, two are equal, or only one run has the metric.
    """
    chosen = [{each.name: each for each in choose_series(found, Choice())} for found in (run.infos for run in series)]
    found = []
    for name in sorted({name for each in chosen for name in each}):
        direction = find_direction(name)
        cells = [_metric(each.get(name), direction) for each in chosen]
        found.append({"name": name, "direction": direction, "better": find_better(cells, direction), "runs": cells})
    return found


def _metric(info: SeriesInfo | None, direction: str | None) -> dict[str, Any] | None:
    if info is None:
        return None
    found = {
        "rank": info.rank,
        "count": info.count,
        "last": info.last,
        "last_step": info.last_step,
        "min": info.least,
        "max": info.greatest,
        "best": None,
        "best_step": None,
        "nan": info.num_nan,
    }
    if direction is not None and info.count > info.num_nan:
        down = direction == "down"
        found["best"] = info.least if down else info.greatest
        found["best_step"] = info.least_step if down else info.greatest_step
    return found


def find_better(cells: Sequence[Mapping[str, Any] | None], direction: str | None) -> int | None:
    """Return the place of the best of several values; None where none is the best."""
    known = {place: cell["best"] for place, cell in enumerate(cells) if cell is not None and cell["best"] is not None}
    if direction is None or len(known) < 2:
        return None
    pick: Callable[..., float] = min if direction == "down" else max
    best = pick(known.values())
    places = [place for place, value in known.items() if value == best]
    return places[0] if len(places) == 1 else None


# ---- where the time went


def compare_accounts(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the accounts of a step, the mean over ranks, and their sum: `{name, seconds, shares, ratios}`."""
    told = [run["accounts"] or {} for run in runs]
    totals = [math.fsum(each["mean"] for each in accounts.values()) if accounts else None for accounts in told]
    names = list(dict.fromkeys(name for accounts in told for name in accounts))
    if not names:
        return []
    rows = [(name, [accounts[name]["mean"] if name in accounts else None for accounts in told]) for name in names]
    return [
        {
            "name": name,
            "seconds": seconds,
            "shares": [ratio(each, total) for each, total in zip(seconds, totals, strict=True)],
            "ratios": ratios(seconds),
        }
        for name, seconds in [*rows, ("step", totals)]
    ]


def compare_throughput(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rates that any run has: `{name, values, ratios}`."""
    rows = [(name, [run["throughput"].get(name) for run in runs]) for name in RATES]
    return [{"name": name, "values": values, "ratios": ratios(values)} for name, values in rows if any(values)]


def compare_goodput(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return goodput and what was lost: `{name, values}`; `ratio` is a share, all else are seconds."""
    told = [run["goodput"] for run in runs]
    if not any(told):
        return []
    lost = list(dict.fromkeys(name for each in told if each for name in each["lost"]))
    rows = [(name, [each and each[name] for each in told]) for name in ("ratio", "productive_s", "total_s")]
    rows += [(f"lost.{name}", [each and each["lost"].get(name) for each in told]) for name in lost]
    return [{"name": name, "values": values} for name, values in rows]


def ratios(values: Sequence[float | None]) -> list[float | None]:
    """Return each value over the first one; null where that says nothing."""
    return [ratio(each, values[0]) for each in values]


def ratio(value: float | None, base: float | None) -> float | None:
    """Return a value over another one; None where either is missing or the other is 0."""
    return None if value is None or not base else value / base


# ---- the first step that differs


def find_divergence(
    runs: tuple[Mapping[str, Any], Mapping[str, Any]],
    series: tuple[RunSeries, RunSeries],
    *,
    everything: bool,
) -> dict[str, Any]:
    """Return where a run diverges from the first one, `{run, compared, reason, data_order, step, metrics, ...}`.

    `compared` is false, with the `reason`, where the two were not asked to be the same training.
    """
    reason = unlike_reason(*runs)
    first, second = series
    pairs = [] if reason else comparable_pairs(first.infos, second.infos)
    budget = None if everything else BUDGET_POINTS
    told = compare_series(first.reader, second.reader, pairs, budget=budget) if pairs else None
    return {
        "run": runs[1]["id"],
        "compared": told is not None,
        "reason": reason or (None if told else "metrics"),
        "data_order": data_order(*runs),
        **_told(told),
    }


def _told(comparison: Comparison | None) -> dict[str, Any]:
    differences = comparison.differences if comparison else ()
    return {
        "step": differences[0].step if differences else None,
        "metrics": [{"name": each.name, "values": [each.first, each.second]} for each in differences],
        "names": list(comparison.metrics) if comparison else [],
        "num_points": comparison.num_points if comparison else 0,
        "last_step": comparison.last_step if comparison else None,
        "exact": comparison.exact if comparison else None,
    }


def unlike_reason(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return why two runs cannot be expected to give equal numbers: `seed`, `world` or `data`; None where they can."""
    if first["seed"] is None or first["seed"] != second["seed"]:
        return "seed"
    if first["world"] != second["world"]:
        return "world"
    return "data" if data_order(first, second) == "different" else None


def data_order(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return whether the same data came in the same order: `equal`, `different` or `unknown`.

    The digest is of the order up to the end, so runs of unlike length say nothing by it.
    """
    digests = [run["digests"].get("data") for run in (first, second)]
    if None in digests:
        return "unknown"
    if digests[0] == digests[1]:
        return "equal"
    return "different" if first["steps"] == second["steps"] else "unknown"
