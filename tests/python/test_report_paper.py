# SPDX-License-Identifier: Apache-2.0
"""The page when it is printed: nothing is cut, folded or blank, and afterwards all is as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_browser import Driver, chromium, opened, problems, reveal
from report_samples import TRACES, command, replay, sweep, tune
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import dlsim

WIDE = 690  # pixels of text on A4 and Letter
CHART_WIDTH = "return document.querySelector('[data-chart=\"scale-path\"] .main-svg').clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Driver]:
    yield from chromium()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with folded sections, a sweep, and tables of long names."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    result = command("replay", TRACES / "lm-trouble-cut", "--policy", "torch", "--heat-map")
    names = [f"model.decoder.layers.{i}.encoder_attention.k_proj.weight.grad" for i in range(900)]
    long = replay(names, bins=20, policies=("torch", "a policy with a long name"))
    dlsim.report.write_report([result, long, sweep(), tune()], path)
    return path


def to_paper(browser: Driver) -> None:
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    reveal(browser)


def test_charts_and_tables_fit_the_paper(browser: Driver, page: Path) -> None:
    opened(browser, page)
    reveal(browser)  # drawn for the screen before
    to_paper(browser)
    script = """
        const left = document.querySelector("main").getBoundingClientRect().left;
        const shown = [...document.querySelectorAll("table, pre, .main-svg, h2, p")];
        return shown.map((e) => [e.tagName + "#" + e.id, e.getBoundingClientRect().right - left]);
    """
    beyond = [(name, right) for name, right in browser.execute_script(script) if right > WIDE + 1]
    assert beyond == []
    heights = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].map(e => e.offsetHeight)"
    )
    assert min(heights) > 100 and max(heights) <= 620


def test_nothing_is_folded_or_blank_on_paper(browser: Driver, page: Path) -> None:
    opened(browser, page)
    folded = browser.find_elements(By.CSS_SELECTOR, "details:not([open])")
    assert folded
    to_paper(browser)
    assert not browser.find_elements(By.CSS_SELECTOR, "details:not([open])")
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    assert all(c.find_elements(By.CSS_SELECTOR, ".main-svg") for c in charts)
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert len(browser.find_elements(By.CSS_SELECTOR, "details:not([open])")) == len(folded)
    reveal(browser)
    assert browser.execute_script(CHART_WIDTH) > WIDE
    assert problems(browser) == []


def test_a_chart_drawn_again_has_the_width_of_its_place(browser: Driver, page: Path) -> None:
    opened(browser, page)
    reveal(browser)
    script = "document.querySelector('main').style.width = arguments[0]; Report.redrawAll()"
    for width in (500, 900, 600):
        browser.execute_script(script, f"{width}px")
        reveal(browser)
        assert width - 100 < browser.execute_script(CHART_WIDTH) <= width


def test_paper_is_light(browser: Driver, page: Path) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    opened(browser, page)
    script = "return [Report.color('card'), Report.element('fates').layout.font.color]"
    reveal(browser)
    card, ink = browser.execute_script(script)
    to_paper(browser)
    printed = browser.execute_script(script)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert printed == ["#ffffff", "#1c1f24"] and card != printed[0] and ink != printed[1]


def test_charts_out_of_view_are_drawn_in_spare_time(browser: Driver, page: Path) -> None:
    opened(browser, page)
    drawn = '[data-chart="pareto"] .main-svg'
    WebDriverWait(browser, 60).until(lambda d: d.find_elements(By.CSS_SELECTOR, drawn))
    assert browser.execute_script("return scrollY") == 0
