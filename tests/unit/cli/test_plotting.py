from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pytest

from gscalar.cli.plotting import (
    Plot,
    PlotLine,
    draw_plot,
    log_ticks,
    nice_ticks,
    sparkline,
    step_text,
    tick_labels,
    x_ticks,
)

NAN = math.nan


def line(
    x: list[float],
    y: list[float],
    label: str = "base",
    *,
    nan_at: Sequence[float] = (),
    smoothed: tuple[list[float], list[float]] | None = None,
) -> PlotLine:
    return PlotLine(
        label=label,
        x=np.array(x, float),
        y=np.array(y, float),
        smoothed_x=np.array(smoothed[0], float) if smoothed else None,
        smoothed_y=np.array(smoothed[1], float) if smoothed else None,
        marks={"x": np.array(nan_at, float)} if nan_at else {},
    )


def drawn(*lines: PlotLine, axis: str = "step", colour: bool = False, **options: object) -> list[str]:
    plot = Plot(title="loss", lines=lines, axis=axis, **{"width": 40, "height": 4, **options})  # type: ignore[arg-type]
    return [each.plain for each in draw_plot(plot, colour=colour)]


TICKS: dict[str, tuple[tuple[float, float, int], list[float]]] = {
    "ones": ((0, 5, 6), [0, 1, 2, 3, 4, 5]),
    "twos": ((0, 10, 6), [0, 2, 4, 6, 8, 10]),
    "fives": ((1, 21, 5), [5, 10, 15, 20]),
    "below one": ((0.1, 0.4, 4), [0.1, 0.2, 0.3, 0.4]),
    "the last that fit": ((0.02, 9, 5), [2, 4, 6, 8]),
    "below zero": ((-1, 1, 3), [-1, 0, 1]),
    "between whole numbers": ((1.1, 1.9, 2), [1.5]),
}


@pytest.mark.parametrize("sentence", TICKS)
def test_ticks_are_round(sentence: str) -> None:
    given, want = TICKS[sentence]
    assert nice_ticks(*given) == pytest.approx(want)


@pytest.mark.parametrize(
    ("low", "high"),
    [(1.0, math.nextafter(1.0, 2)), (0.0, 1e-299), (-8e307, 8e307), (1e15, 1e15 + 1), (-3e-9, 5e12)],
)
def test_ticks_of_any_range_are_few(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 6)
    assert len(ticks) <= 8
    assert len(tick_labels(ticks)) == len(ticks)


LOG_TICKS: dict[str, tuple[tuple[float, float], list[float]]] = {
    "decades": ((0.01, 10.0), [0.01, 0.1, 1.0, 10.0]),
    "every second decade": ((1e-9, 1.0), [1e-9, 1e-7, 1e-5, 1e-3, 1e-1]),
    "round numbers within one decade": ((2.0, 8.0), [2.0, 4.0, 6.0, 8.0]),
}


@pytest.mark.parametrize("sentence", LOG_TICKS)
def test_logarithmic_ticks(sentence: str) -> None:
    given, want = LOG_TICKS[sentence]
    assert log_ticks(*given) == pytest.approx(want)


LABELS: dict[str, tuple[list[float], list[str]]] = {
    "whole": ([0, 5, 10], ["0", "5", "10"]),
    "as many decimals as tell them apart": ([0.1, 0.15, 0.2], ["0.10", "0.15", "0.20"]),
    "large": ([1e6, 2e6], ["1e+06", "2e+06"]),
    "small": ([1e-5, 2e-5], ["1e-05", "2e-05"]),
    "close": ([1.00000001, 1.00000002], ["1.00000001", "1.00000002"]),
    "none": ([], []),
}


@pytest.mark.parametrize("sentence", LABELS)
def test_labels(sentence: str) -> None:
    ticks, want = LABELS[sentence]
    assert tick_labels(ticks) == want


@pytest.mark.parametrize(
    ("step", "want"),
    [(0, "0"), (500, "500"), (1500, "1.5k"), (12345, "12.345k"), (2_000_000, "2M"), (1234, "1234"), (-20_000, "-20k")],
)
def test_steps_are_short_where_they_can_be(step: float, want: str) -> None:
    assert step_text(step) == want


def test_steps_have_no_ticks_between_them() -> None:
    ticks, labels, _ = x_ticks("step", 0, 2, 9)
    assert (ticks, labels) == ([0, 1, 2], ["0", "1", "2"])


def test_workers_are_powers_of_two_of_their_positions() -> None:
    assert x_ticks("workers", 0, 4, 5)[:2] == ([0, 1, 2, 3, 4], ["1", "2", "4", "8", "16"])
    assert x_ticks("workers", 3, 12, 5)[1][-1] == "4096"


def test_relative_time_has_the_unit_that_fits() -> None:
    assert x_ticks("relative", 0, 7200, 4)[1:] == (["0", "1", "2"], "h")
    assert x_ticks("relative", 0, 90, 4)[2] == "s"


def test_times_are_those_of_this_place() -> None:
    midnight = datetime.fromisoformat("2026-03-04T00:00:00").astimezone().timestamp()
    ticks, labels, _ = x_ticks("time", midnight + 60, midnight + 3 * 3600, 4)
    assert labels == ["01:00", "02:00", "03:00"]
    assert ticks[0] == midnight + 3600


# ---- pictures


def test_a_rising_line_with_its_axes() -> None:
    title, upper, lower, axis, labels, name, legend = drawn(line([0, 10], [0, 4]), height=2, width=23)
    assert (title, name.strip(), legend) == ("loss", "step", "  base")
    assert (upper[:3], lower[:3]) == ("  │", "0 ┤")
    assert len(upper) == 23  # it ends in the upper right corner
    assert upper[3] == " "
    assert lower[3] != " "
    assert (axis[:4], axis[-1], labels.split()) == ("  └┬", "┬", ["0", "10"])


def test_nothing_is_wider_than_asked_and_no_row_is_missing() -> None:
    steps = list(range(1000))
    got = drawn(line(steps, [math.sin(each / 50) * 1e-3 for each in steps], label="x" * 200), width=60, height=7)
    assert max(len(each) for each in got) <= 60
    assert sum(each.lstrip(" -.0123456789e")[:1] in "│┤" for each in got[1:8]) == 7


def test_a_spike_reaches_its_value() -> None:
    got = drawn(line(list(range(100)), [0.0] * 50 + [9.0] + [0.0] * 49))
    assert any(0x2800 < ord(each) < 0x2900 for each in got[1])


def test_what_is_not_finite_is_marked_on_the_axis_and_a_gap_in_the_line() -> None:
    got = drawn(line([0, 1, 2, 3], [1, NAN, NAN, 1], nan_at=[1, 2]), width=24, height=1)
    axis = next(each for each in got if "└" in each)
    assert axis.count("x") == 2
    field = got[1][got[1].index("┤") + 1 :] if "┤" in got[1] else got[1][got[1].index("│") + 1 :]
    assert field[0] != " "
    assert field[5:15].strip() == ""


def test_lines_without_colour_have_letters() -> None:
    got = drawn(line([0, 9], [0, 0], "one"), line([0, 9], [5, 5], "two"))
    field = "".join(got[1:5])
    assert "A" in field
    assert "B" in field
    assert got[-2:] == ["A one", "B two"]


def test_one_line_needs_no_letter() -> None:
    assert "A" not in "".join(drawn(line([0, 9], [0, 5])))


def test_a_smoothed_line_is_over_the_raw_one() -> None:
    smoothed = line([0, 1, 2], [0, 9, 0], smoothed=([0, 2], [4, 4]))
    plot = Plot(title="loss", lines=[smoothed], axis="step", width=30, height=5)
    styles = {str(span.style) for row in draw_plot(plot, colour=True) for span in row.spans}
    assert {"cyan dim", "cyan bold"} <= styles
    assert "AAAA" in "".join(each.plain for each in draw_plot(plot, colour=False))


def test_a_logarithmic_axis_leaves_out_what_is_not_above_zero() -> None:
    got = drawn(line([0, 1, 2, 3], [0.01, 0, 1, 10]), log=True, height=8)
    labels = [each.split("┤")[0].strip() for each in got if "┤" in each]
    assert labels == ["10.00", "1.00", "0.10", "0.01"]


@pytest.mark.parametrize("values", [[], [NAN], [0.0, -1.0]], ids=["no points", "NaN only", "nothing above zero"])
def test_what_cannot_be_drawn_is_said(values: list[float]) -> None:
    got = drawn(line(list(range(len(values))), values), log=True)
    assert got[1] == "  no value that can be drawn"


@pytest.mark.parametrize("value", [0.0, 5.0, -1e300, 8e307, 1e-320])
def test_a_constant_is_drawn(value: float) -> None:
    assert any(0x2800 < ord(each) < 0x2900 for row in drawn(line([3], [value])) for each in row)


# ---- sparklines


SPARKS: dict[str, tuple[list[float], list[float], str]] = {
    "rising": ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
    "constant": ([2, 2], [2, 2], "▁▁"),
    "a spike up": ([0, 0, 0, 0], [0, 0, 7, 0], "▁▁█▁"),
    "a spike down": ([7, 0, 7, 7], [7, 7, 7, 7], "█▁██"),
    "a column of NaN": ([1, NAN, 0], [1, NAN, 0], "█x▁"),
    "NaN only": ([NAN], [NAN], "x"),
    "nothing": ([], [], ""),
}


@pytest.mark.parametrize("sentence", SPARKS)
def test_a_sparkline_is(sentence: str) -> None:
    least, greatest, want = SPARKS[sentence]
    assert sparkline(np.array(least, float), np.array(greatest, float)) == want
