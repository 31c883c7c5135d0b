"""The page as a whole: what it says, that nothing from a trace gets out of its text, and that it stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.base.errors import EnvironmentProblem
from gscalar.diagnosis.diagnose import diagnose
from gscalar.model.timeline import (
    ACCOUNT_NAMES,
    NONE,
    Activity,
    DeviceUse,
    Lane,
    Rank,
    Signal,
    Spans,
    StepTimeline,
    no_steps,
)
from gscalar.testing.timelines import data_parallel_timeline
from gscalar.views.report import report_page, write_report

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"


class Page(HTMLParser):
    """What a browser makes of a page: its elements with their attributes, and the text of each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)

    def text(self, *kinds: str) -> str:
        """Return the text of elements of these kinds, or of all but styles and scripts."""
        return " ".join(
            " ".join(told)
            for kind, told in self.texts.items()
            if (kind in kinds if kinds else kind not in ("style", "script"))
        )

    @property
    def data(self) -> Any:
        """What the timeline is drawn from."""
        found = [told for told in self.texts["script"] if told.startswith("{")]
        return json.loads("".join(found))


def page_of(timeline: StepTimeline) -> Page:
    return Page(report_page(timeline, diagnose(timeline)))


def straggler(**options: Any) -> StepTimeline:
    return data_parallel_timeline(np.random.default_rng(3), **({"ranks": 8, "steps": 30, "slow": {3: 1.5}} | options))


def evil_everywhere() -> StepTimeline:
    """A timeline whose every text is an attack."""
    timeline = straggler()
    return replace(
        timeline,
        name=EVIL,
        source="operations-of-" + EVIL,
        names=tuple(EVIL for _ in timeline.names),
        notes=(EVIL,),
        unmatched=(EVIL,),
        unknown={**timeline.unknown, Signal.GC: EVIL},
        work_unit=EVIL,
    )


def test_the_verdict_stands_in_one_sentence_with_its_cost_and_confidence() -> None:
    got = page_of(straggler()).text("h1")
    assert re.fullmatch(
        r"Rank 3 computes slower .*, which costs [\d.]+ % of the step \(.* of .*\); confidence: \w+\.", got
    )


def test_text_from_a_trace_makes_no_element_and_no_script() -> None:
    clean, evil = page_of(straggler()), page_of(evil_everywhere())
    counted = [sorted(tag for tag, _ in page.elements if tag in ("script", "img")) for page in (clean, evil)]
    assert counted[0] == counted[1] == ["script", "script"]
    assert not any(name.startswith("on") for _, attributes in evil.elements for name in attributes)
    assert "alert(1)" in evil.text("b")
    assert any("alert(1)" in name for name in evil.data["names"])
    assert "\u202e" not in report_page(evil_everywhere(), diagnose(evil_everywhere()))


def test_half_a_character_of_a_trace_can_be_written(tmp_path: Path) -> None:
    timeline = replace(straggler(), name="torn \ud83d name", notes=("\udfff",))
    write_report(timeline, diagnose(timeline), tmp_path / "report.html")
    assert "torn \ufffd name" in (tmp_path / "report.html").read_text("utf-8")


def test_the_policy_lets_in_the_pages_own_style_and_script_alone() -> None:
    page = report_page(straggler(), diagnose(straggler()))
    policy = next(
        attributes["content"]
        for tag, attributes in Page(page).elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    want = {"default-src 'none'", "base-uri 'none'", "form-action 'none'"}
    for kind, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        want.add(f"{rule} 'sha256-{digest}'")
    assert set(policy.split("; ")) == want
    assert not any("style" in attributes for _, attributes in Page(page).elements), (
        "the policy refuses style attributes"
    )


def test_nothing_is_fetched_from_anywhere() -> None:
    page = page_of(straggler())
    assert not [attributes for _, attributes in page.elements if {"src", "href", "srcset", "action"} & set(attributes)]
    assert "http" not in page.text("script", "style").replace("http-equiv", "")


def test_the_script_is_small() -> None:
    page = report_page(straggler(), diagnose(straggler()))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script.encode()) < 25_000


def test_an_account_that_is_not_known_is_named_and_not_drawn_as_zero() -> None:
    timeline = straggler()
    accounts = timeline.accounts.copy()
    accounts[:, :, ACCOUNT_NAMES.index("compute")] = np.nan
    timeline = replace(timeline, accounts=accounts, unknown={Signal.COMPUTE: "no kernel is seen"})
    page = report_page(timeline, diagnose(straggler()))
    row = page_of_row(page_without(timeline), "compute")
    assert row[:2] == ["not known", "no kernel is seen"]
    # The part of the bars that compute would fill is there, as unknown.
    assert page.count('class="k-unknown"') >= timeline.num_ranks
    assert 'class="k-compute"' not in page[page.index("Mean step of each rank") : page.index("Over the steps")]


def page_without(timeline: StepTimeline) -> str:
    found = diagnose(straggler())
    return report_page(timeline, replace(found, accounts={**found.accounts, "compute": None}))


def page_of_row(page: str, account: str) -> list[str]:
    """Return the cells beside an account."""
    (row,) = re.findall(rf"<tr><th scope=\"row\">(?:(?!</th>).)* {account}</th>(.*?)</tr>", page)
    return re.findall(r"<td[^>]*>(.*?)</td>", row)


def window(num_spans: int = 50, num_devices: int = 1) -> StepTimeline:
    """A source without steps: spans and devices only."""
    rng = np.random.default_rng(0)
    start_s = rng.uniform(-1, 9, num_spans)
    columns = {
        "lane": rng.choice([Lane.COMPUTE, Lane.COMMUNICATION], num_spans),
        "activity": rng.choice([Activity.COMPUTE, Activity.COMMUNICATION], num_spans),
        "name": np.arange(num_spans) % 5_000,
    }
    use = DeviceUse(
        rank=0, device=0, span_s=10, busy_s=7, compute_s=6, communication_s=2, copy_s=0.5, exposed_s=0.8, overlap_s=1.2,
        idle_launch_s=np.nan, idle_queued_s=np.nan, idle_other_s=np.nan, num_operations=50, median_operation_s=1e-5,
    )  # fmt: skip
    return StepTimeline(
        source="nsight", name="window", ranks=(Rank(rank=0),),
        spans=Spans.of(num_spans, start_s=start_s, end_s=start_s + rng.exponential(0.01, num_spans), **columns),
        names=tuple("<" * 200 + str(at) for at in range(5_000)),
        devices=tuple(replace(use, device=at) for at in range(num_devices)), **no_steps(1),
    )  # type: ignore[arg-type]  # fmt: skip  # its fields have these types


def many_names() -> StepTimeline:
    timeline = window(300_000)
    return replace(
        timeline, unmatched=tuple(EVIL * 50 for _ in range(5_000)), notes=tuple(EVIL * 50 for _ in range(5_000))
    )


LARGE: dict[str, Callable[[], StepTimeline]] = {
    "600 ranks with spans": lambda: straggler(ranks=600, steps=12),
    "5,000 ranks with accounts only": lambda: replace(straggler(ranks=5_000, steps=4), spans=Spans.of(0)),
    "3,000 steps": lambda: straggler(ranks=2, steps=3_000, slow={1: 1.3}),
    "300,000 spans with 5,000 long names": many_names,
}


@pytest.mark.parametrize("sentence", LARGE)
def test_a_page_stays_below_2_mb_with(sentence: str) -> None:
    timeline = LARGE[sentence]()
    assert len(report_page(timeline, diagnose(timeline)).encode()) < 2_000_000


EMPTY = StepTimeline(source="record", name="nothing", ranks=(), spans=Spans.of(0), names=(), **no_steps(0))  # type: ignore[arg-type]  # its fields have these types

SMALL: dict[str, tuple[Callable[[], StepTimeline], str]] = {
    "no rank": (lambda: EMPTY, "no spans"),
    "no steps and spans": (window, "the source has no steps"),
    "one rank": (lambda: straggler(ranks=1, slow={}), "there is none"),
    "accounts and no spans": (lambda: replace(straggler(), spans=Spans.of(0)), "no spans"),
    "one step": (lambda: straggler(steps=1), "median step"),
    "a rank without any step": (lambda: without_rank(straggler(), 2), "not known"),
    "no known account": (lambda: replace(straggler(), accounts=np.full((8, 30, 9), np.nan)), "not known"),
}  # fmt: skip


def without_rank(timeline: StepTimeline, rank: int) -> StepTimeline:
    begin_s, end_s, accounts = timeline.begin_s.copy(), timeline.end_s.copy(), timeline.accounts.copy()
    begin_s[rank], end_s[rank], accounts[rank] = np.nan, np.nan, np.nan
    return replace(timeline, begin_s=begin_s, end_s=end_s, accounts=accounts, collectives=None)


@pytest.mark.parametrize("sentence", SMALL)
def test_a_page_can_be_made_of(sentence: str) -> None:
    build, want = SMALL[sentence]
    page = page_of(build())
    assert want in page.text()
    assert "nan" not in page.text().lower().split()
    drawn = [
        value for tag, attributes in page.elements for key, value in attributes.items() if key != "content" and value
    ]
    assert not [value for value in drawn if "nan" in value or "inf" in value.split("%")[0]]


def test_many_ranks_are_drawn_in_bins_and_those_of_the_verdict_alone() -> None:
    timeline = replace(straggler(ranks=1_000, steps=12, slow={777: 1.5}), spans=Spans.of(0))
    bars = re.findall(r'aria-label="([^"]*) a step;', report_page(timeline, diagnose(timeline)))
    assert bars[0].startswith("rank 777:")
    assert len(bars) < 50


def test_devices_keep_idle_time_whose_cause_is_not_known() -> None:
    page = report_page(window(num_devices=2), diagnose(window(num_devices=2)))
    # 10 s, of which 7 busy: 4.8 compute alone, 1.2 both, 0.8 communication alone, and 0.2 copies.
    want = "compute alone 48 %, compute beside communication 12 %, communication alone 8 %, copies alone 2 %"
    assert page.count(f"{want}, idle: cause not known 30 %") == 2


def test_the_file_is_there_in_full_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(EnvironmentProblem) as caught:
        write_report(straggler(), diagnose(straggler()), path)
    assert (caught.value.code, caught.value.value) == ("report-not-writable", str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "before"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "report.html"
    with pytest.raises(EnvironmentProblem, match="absent"):
        write_report(straggler(), diagnose(straggler()), path)


def test_a_spans_lane_without_a_step_is_drawn_in_the_steps_it_lies_in() -> None:
    timeline = straggler()
    spans = timeline.spans
    step = np.where(spans.activity == Activity.DATA_WAIT, NONE, spans.step)
    page = page_of(replace(timeline, spans=replace(spans, step=step)))
    kinds = page.data["kinds"]
    assert all(kinds.index("data_wait") in scene["columns"]["kind"] for scene in page.data["scenes"])
