"""The page of a diagnosis in a real Chromium: its console is silent, its timeline can be read, zoomed, pointed at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gscalar.diagnosis.diagnose import diagnose
from gscalar.model.timeline import StepTimeline
from gscalar.testing.browser import Browser, open_browser
from gscalar.testing.timelines import data_parallel_timeline
from gscalar.views.report import write_report

pytestmark = pytest.mark.debian("chromium-driver")

ATTACK = "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
RIGHT, DOWN, HOME = "\ue014", "\ue015", "\ue011"  # WebDriver's code points


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    browser.console()
    browser.resize(1280, 900)
    browser.open(written(straggler(), tmp_path))
    return browser


def straggler() -> StepTimeline:
    return data_parallel_timeline(
        np.random.default_rng(3), ranks=8, steps=30, slow={3: 1.5}, work=np.ones((8, 30)), jitter=0.0
    )


def written(timeline: StepTimeline, folder: Path) -> Path:
    write_report(timeline, diagnose(timeline), folder / "report.html")
    return folder / "report.html"


def place(browser: Browser, rank: int, part: float) -> tuple[float, float]:
    """Return where in the window a rank's first lane lies, at a part of what is drawn of the step."""
    browser.run("document.getElementById('timeline').scrollIntoView()")
    box = browser.run(
        "const b = document.getElementById('spans').getBoundingClientRect(); return [b.left, b.top, b.width]"
    )
    rows = 2 * rank * 13 + rank * (2 * 2 + 7) + 4 + 6  # two lanes of one row each: the numbers of page.js
    return box[0] + 132 + part * (box[2] - 140), box[1] + rows


def tip(browser: Browser) -> str:
    shown: Any = browser.run("const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent")
    return str(shown)


def axis_of(browser: Browser) -> str:
    """Return the picture of the axis, which differs when another part of the step is shown."""
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    return str(browser.run(f"return {frame}.then(() => document.getElementById('axis').toDataURL())"))


def test_the_page_opens_without_a_word_on_the_console_and_says_its_verdict(opened: Browser) -> None:
    assert opened.console() == []
    assert opened.run("return document.documentElement.dataset.drawn") == "yes"
    assert opened.run("return document.getElementById('verdict').textContent").startswith("Rank 3 computes slower")


def test_the_policy_refuses_other_scripts(opened: Browser) -> None:
    opened.run(
        "const added = document.createElement('script'); added.textContent = 'window.attacked = 1';"
        "document.body.append(added)"
    )
    assert opened.run("return window.attacked === undefined")
    assert any("Content Security Policy" in each for each in opened.console())


def test_a_name_that_is_a_script_does_nothing(browser: Browser, tmp_path: Path) -> None:
    timeline = straggler()
    timeline = replace(timeline, name=ATTACK, names=tuple(ATTACK for _ in timeline.names), notes=(ATTACK,))
    browser.console()
    browser.resize(1280, 900)
    browser.open(written(timeline, tmp_path))
    browser.point(*place(browser, 0, 0.3))
    assert ATTACK in tip(browser)
    assert browser.run("return window.attacked === undefined && document.images.length === 0")
    assert browser.console() == []


def test_a_span_says_its_name_its_length_and_where_it_is(opened: Browser) -> None:
    # Forward is a third of the compute: of 100 ms on rank 0, of 150 ms on rank 3.
    for rank, want in ((0, "33.3 ms"), (3, "50.0 ms")):
        opened.point(*place(opened, rank, 0.1))
        got = tip(opened).split("\n")
        assert got[0] == "forward"
        assert got[1].startswith(want)
        assert got[-1].startswith(f"rank {rank}, host, step ")


ZOOMS = {
    "a button": lambda browser, x, y: browser.run("document.getElementById('closer').click()"),
    "the wheel, once the timeline has the focus": lambda browser, x, y: (
        browser.point(x, y, click=True), browser.turn(x, y, -200),
    ),
    "a key": lambda browser, x, y: (browser.point(x, y, click=True), browser.press("w")),
}  # fmt: skip


@pytest.mark.parametrize("sentence", ZOOMS)
def test_the_timeline_is_zoomed_by(opened: Browser, sentence: str) -> None:
    before = axis_of(opened)
    ZOOMS[sentence](opened, *place(opened, 0, 0.1))
    assert axis_of(opened) != before
    opened.run("document.getElementById('whole').click()")
    assert axis_of(opened) == before


def test_the_wheel_scrolls_the_page_where_the_timeline_has_no_focus(opened: Browser) -> None:
    x, y = place(opened, 0, 0.1)
    before = axis_of(opened)
    opened.turn(x, y, 100)
    assert axis_of(opened) == before


def test_spans_can_be_read_with_the_keyboard_alone(opened: Browser) -> None:
    opened.run("document.getElementById('spans').focus()")
    opened.press(RIGHT)
    first = opened.run("return document.getElementById('said').textContent")
    opened.press(RIGHT)
    second = opened.run("return document.getElementById('said').textContent")
    opened.press(DOWN)
    below = opened.run("return document.getElementById('said').textContent")
    assert first.startswith("host_gap")
    assert second.startswith("data_wait")
    assert "rank 0, communication" in below


def test_another_step_is_chosen_with_a_button(opened: Browser) -> None:
    before = opened.run("return document.getElementById('steps').selectedOptions[0].textContent")
    opened.run(
        "const [before, after] = ['before', 'after'].map((id) => document.getElementById(id));"
        "(after.disabled ? before : after).click()"
    )
    after = opened.run("return document.getElementById('steps').selectedOptions[0].textContent")
    assert before != after
    assert opened.run("return document.getElementById('said').textContent").startswith(f"step {after.split()[0]}:")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    browser.prefer(scheme)
    browser.resize(width, 900)
    browser.open(written(straggler(), tmp_path))
    assert browser.run("return document.documentElement.scrollWidth") <= width
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")
    browser.prefer("light")
