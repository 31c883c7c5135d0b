"""A diagnosis as one HTML file that needs nothing beside it: `gscalar diagnose --html FILE`.

The page says what was found, for and against, what each fix is worth, and draws the steps it was found in. All but the
timeline is plain markup that needs no script. The policy in its head lets nothing in but its own style and script, by
their SHA-256, so that a name from a trace can do nothing even where it got past the escaping; nothing is fetched.

How much is drawn is bounded (see `gscalar.views.reporting.scenes`), so that a page of any training stays below 2 MB.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from gscalar.diagnosis.verdicts import Cause, Diagnosis, Finding
from gscalar.model.timeline import StepTimeline
from gscalar.views.reporting.accounts import accounts_table, rank_bars, step_area
from gscalar.views.reporting.fixes import fixes_table
from gscalar.views.reporting.markup import Child, Markup, as_json, clean, element, join
from gscalar.views.reporting.scenes import Scenes, draw_scenes
from gscalar.views.reporting.words import (
    cause_said,
    cost_said,
    counted,
    duration,
    share,
    spelled,
    times,
    verdict_sentence,
)
from gscalar.views.reporting.workers import device_bars, pace_part
from gscalar.views.writing import write_file

_MOST_LINES: Final = 40  # of notes, of unmatched names, of what is not known
_LONGEST_LINE: Final = 400


def write_report(timeline: StepTimeline, found: Diagnosis, path: Path) -> None:
    """Write a diagnosis as one page; the file is there in full or not at all.

    Raises `EnvironmentProblem` report-not-writable.
    """
    write_file(path, [report_page(timeline, found)], "report")


def report_page(timeline: StepTimeline, found: Diagnosis) -> str:
    """Return the page of a diagnosis."""
    scenes = draw_scenes(timeline, found.principal.ranks)
    style, script = Markup(_asset("page.css")), Markup(_asset("page.js"))
    policy = (
        f"default-src 'none'; script-src '{_sha256(script)}'; style-src '{_sha256(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{found.name}: diagnosis"),
        element("style", style),
    )
    data = element("script", as_json(scenes.data), type="application/json", id="scenes") if scenes else None
    body = element("body", *_parts(timeline, found, scenes), data, element("script", script) if scenes else None)
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _parts(timeline: StepTimeline, found: Diagnosis, scenes: Scenes | None) -> list[Markup]:
    parts = [
        _header(found),
        _section("Evidence", *_evidence(found)),
        _section("What a fix is worth", fixes_table(found)),
        _section("Timeline", *_timeline(scenes)),
        _section("Where the time goes", *_accounts(timeline, found, scenes)),
    ]
    if timeline.num_steps:
        parts.append(_section("Pace of the workers", pace_part(timeline, found.principal.ranks)))
    if timeline.devices:
        parts.append(_section("What the devices did", device_bars(timeline)))
    parts.append(_section("What is not known", _unknown(found.unknown, found.unmatched)))
    if found.notes:
        parts.append(_section("Notes", _lines(found.notes)))
    return [
        element("main", *parts),
        element("footer", "Written by gscalar. Nothing on this page is fetched from anywhere."),
    ]


def _section(title: str, *children: Child) -> Markup:
    key = f"part-{title.lower().replace(' ', '-')}"
    return element("section", element("h2", title, id=key), *children, aria_labelledby=key)


def _header(found: Diagnosis) -> Markup:
    some = f"{found.num_ranks:,} of " if found.world > found.num_ranks else ""
    world = f"{some}{counted(found.world, 'rank')}"
    where = f"{found.source} \u00b7 {world} \u00b7 {counted(found.num_steps, 'step')}"
    figures = (
        ("median step", duration(found.step_median_s), "measured"),
        ("slow-down", times(found.slowdown), "replayed step over the ideal one"),
        ("exposed communication", duration(found.exposed_s), "a step" if found.num_steps else "of all devices"),
        ("overlap", share(found.overlap_ratio), "of the communication"),
        ("replay error", share(found.replay_error), "measured over replayed, minus 1"),
    )
    told = [
        element(
            "div",
            element("dt", name, title=meaning),
            element("dd", value, class_=None if value != "not known" else "unknown"),
        )
        for name, value, meaning in figures
    ]
    tone = "calm" if found.principal.cause in (Cause.NONE, Cause.UNKNOWN) else "found"
    return element(
        "header",
        element("p", element("b", clean(found.name, 200)), f" \u00b7 {where}", class_="quiet"),
        element("h1", verdict_sentence(found), class_=tone, id="verdict"),
        element("dl", *told, class_="figures"),
    )


def _evidence(found: Diagnosis) -> list[Child]:
    others = [each for each in found.findings if each != found.principal]
    parts: list[Child] = [_for_and_against(found.principal)]
    for each in others:
        said = f"{cause_said(each)}: {cost_said(each, found.step_mean_s)}, confidence {each.confidence}"
        parts.append(element("details", element("summary", "Also found: ", said), _for_and_against(each)))
    if found.not_supported:
        parts.append(
            element(
                "p",
                "Looked for, and not supported: ",
                ", ".join(map(spelled, found.not_supported)),
                ".",
                class_="quiet",
            )
        )
    return parts


def _for_and_against(finding: Finding) -> Markup:
    return element(
        "div",
        element("div", element("h3", "For"), _lines(finding.evidence_for)),
        element("div", element("h3", "Against, or in doubt"), _lines(finding.evidence_against)),
        class_="sides",
    )


def _timeline(scenes: Scenes | None) -> list[Child]:
    if scenes is None:
        return [element("p", "The source has no spans: there is nothing to draw a timeline from.", class_="quiet")]
    buttons = [
        element("button", sign, type="button", id=key, title=said, aria_label=said)
        for key, sign, said in (
            ("before", "\u2039", "Step before"), ("after", "\u203a", "Next step"),
            ("closer", "+", "Zoom in"), ("farther", "\u2212", "Zoom out"),
            ("left", "\u2190", "Earlier"), ("right", "\u2192", "Later"), ("whole", "whole step", "Show the whole step"),
        )
    ]  # fmt: skip
    picker = element("label", "step ", element("select", id="steps"))
    keys = (
        "Drag to move, shift-drag to choose a range, double-click for the whole step. Ctrl + wheel zooms; after a "
        "click the wheel alone does. Keys: + \u2212 or W S zoom, A D move, arrows go from span to span, Home shows all."
    )
    canvas = element(
        "canvas", id="spans", tabindex=0, role="application", aria_roledescription="timeline",
        aria_label="Timeline of the chosen step", aria_describedby="keys",
    )  # fmt: skip
    return [
        element("div", picker, *buttons, class_="tools"),
        element("div", id="legend", class_="legend"),
        element(
            "div",
            element("canvas", id="axis", aria_hidden="true"),
            element("div", canvas, id="scroller"),
            element("div", id="tip", hidden=True),
            id="timeline",
        ),
        element("output", "Point at a span, or press an arrow key in the timeline.", id="said", aria_live="polite"),
        element("p", keys, id="keys", class_="quiet"),
        element("noscript", element("p", "The timeline is drawn by the page's script, which is switched off here.")),
        _lines(scenes.remarks) if scenes.remarks else None,
    ]  # fmt: skip


def _accounts(timeline: StepTimeline, found: Diagnosis, scenes: Scenes | None) -> list[Child]:
    if not timeline.num_steps:
        return [element("p", "Not known: the source has no steps.", class_="quiet")]
    drawn = [scene["step"] for scene in scenes.data["scenes"]] if scenes else []
    marked = " Marks above: the steps that the timeline shows." if drawn else ""
    return [
        element("div", accounts_table(timeline, found), class_="wide"),
        rank_bars(timeline, found.principal.ranks),
        element("h3", "Over the steps, mean of the ranks"),
        step_area(timeline, drawn),
        element("p", f"Each moment of a step is in one account.{marked}", class_="quiet"),
    ]


def _unknown(unknown: Mapping[str, str], unmatched: tuple[str, ...]) -> Markup:
    # A signal and the causes that need it have the same reason, and often the same name.
    by_reason: dict[str, list[str]] = {}
    for what, why in list(unknown.items())[:_MOST_LINES]:
        names = by_reason.setdefault(clean(why, _LONGEST_LINE), [])
        if (name := spelled(clean(what, _LONGEST_LINE))) not in names:
            names.append(name)
    rows = [element("div", element("dt", ", ".join(names)), element("dd", why)) for why, names in by_reason.items()]
    known = None if rows else element("p", "Nothing that was looked for.", class_="quiet")
    kinds = None
    if unmatched:
        kinds = join(element("h3", "Names that may be communication, of a kind that is not known"), _lines(unmatched))
    return join(element("dl", *rows, class_="unknowns") if rows else None, known, kinds)


def _lines(texts: Iterable[str]) -> Markup:
    told = list(texts)
    if not told:
        return element("p", "Nothing.", class_="quiet")
    shown = [element("li", clean(each, _LONGEST_LINE)) for each in told[:_MOST_LINES]]
    more = len(told) - len(shown)
    return element("ul", *shown, element("li", f"and {more} more", class_="quiet") if more else None)


def _asset(name: str) -> str:
    return (resources.files("gscalar.views.reporting") / name).read_text("utf-8").strip()


def _sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
