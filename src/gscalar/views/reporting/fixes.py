"""Fixes as a table with a drawn interval: the predicted step against the measured one, likely and ceiling apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gscalar.diagnosis.verdicts import Diagnosis
from gscalar.prediction.forecast import Forecast
from gscalar.views.reporting.markup import Markup, element
from gscalar.views.reporting.words import NOT_KNOWN, duration, spelled, times

_WIDE: Final = 0.6  # an axis begins at zero where steps differ by more than this


def fixes_table(found: Diagnosis) -> Markup:
    """Return the fixes, those that gain most first; a sentence where there are none."""
    if not found.fixes:
        return element("p", "No fix applies to what was measured.", class_="quiet")
    ordered = sorted(found.fixes, key=lambda each: -each.gain if math.isfinite(each.gain) else 1.0)
    axis = _Axis.of(found.step_median_s, ordered)
    head = element(
        "tr",
        element("th", "fix", scope="col"),
        element("th", "step, predicted (90 %)", axis.ends() if axis else None, scope="col", class_="plot"),
        element("th", "gain", scope="col"),
        element("th", "ceiling", scope="col"),
    )
    rows = [_row(each, axis) for each in ordered]
    legend = element(
        "p", "\u25cf likely, with its 90 % interval \u00b7 \u25c7 ceiling: the fix taken to its limit \u00b7 ",
        f"\u2502 measured ({duration(found.step_median_s)})", class_="quiet",
    )  # fmt: skip
    table = element("table", element("thead", head), element("tbody", *rows), class_="fixes")
    return element("div", table, legend if axis else None)


def _row(fix: Forecast, axis: _Axis | None) -> Markup:
    known = math.isfinite(fix.predicted_step_s)
    said = (
        f"{duration(fix.predicted_step_s)} ({duration(fix.low_s)} to {duration(fix.high_s)})"
        if known
        else "not predicted: there are no steps to replay"
    )
    return element(
        "tr",
        element("th", spelled(fix.name), element("code", fix.knob), scope="row"),
        element("td", axis.draw(fix, said) if axis and known else None, element("span", said), class_="plot"),
        element("td", times(fix.gain), class_="unknown" if times(fix.gain) == NOT_KNOWN else "number"),
        element("td", times(fix.ceiling), class_="unknown" if times(fix.ceiling) == NOT_KNOWN else "number"),
    )


class _Axis:
    """Where seconds of a step lie in a drawing, in per cent of its width."""

    def __init__(self, low_s: float, high_s: float, measured_s: float) -> None:
        self.low_s, self.high_s, self.measured_s = low_s, high_s, measured_s

    @classmethod
    def of(cls, measured_s: float | None, fixes: Sequence[Forecast]) -> _Axis | None:
        """Return the axis that holds all fixes; None where nothing can be drawn."""
        if measured_s is None or not math.isfinite(measured_s):
            return None
        ends = [measured_s]
        for each in fixes:
            ends += [each.low_s, each.high_s, _at_ceiling_s(each)]
        ends = [each for each in ends if math.isfinite(each)]
        low_s, high_s = min(ends), max(ends)
        if low_s < _WIDE * high_s:
            low_s = 0.0
        room_s = 0.06 * (high_s - low_s) or 0.05 * high_s
        return cls(max(0.0, low_s - room_s), high_s + room_s, measured_s)

    def ends(self) -> Markup:
        """Return what the axis begins and ends with."""
        return element(
            "span", element("span", duration(self.low_s)), element("span", duration(self.high_s)), class_="scale"
        )

    def draw(self, fix: Forecast, said: str) -> Markup:
        """Return the drawing of one fix."""
        low, likely, high = (self._at(each) for each in (fix.low_s, fix.predicted_step_s, fix.high_s))
        ceiling = self._at(_at_ceiling_s(fix))
        measured = self._at(self.measured_s)
        return element(
            "svg",
            element("line", x1="0", x2="100%", y1=11, y2=11, class_="track"),
            element("line", x1=measured, x2=measured, y1=0, y2=22, class_="measured"),
            element("line", x1=low, x2=high, y1=11, y2=11, class_="interval"),
            *(element("line", x1=each, x2=each, y1=6, y2=16, class_="interval") for each in (low, high)),
            element("svg", element("path", d="M0-6L6 0L0 6L-6 0Z", class_="ceiling"), x=ceiling, y=11, class_="open"),
            element("circle", cx=likely, cy=11, r=4.5, class_="likely"),
            role="img", aria_label=f"{said}; at most {times(fix.ceiling)}", width="100%", height=22,
        )  # fmt: skip

    def _at(self, seconds: float) -> str:
        return f"{100 * (seconds - self.low_s) / (self.high_s - self.low_s):.4g}%"


def _at_ceiling_s(fix: Forecast) -> float:
    """Return the step at the ceiling: gains are of means, the prediction is a median."""
    return fix.predicted_step_s * fix.gain / fix.ceiling if fix.ceiling > 0 else math.nan
