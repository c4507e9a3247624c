# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium: opens from the disk, fetches nothing, and its controls work.

Needs the Debian packages chromium and chromium-driver, and selenium.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_samples import HOSTILE, LOGS, TRACES, replay, verdict
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import dlsim


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every kind of figure: real results and hostile names."""
    path, trace = tmp_path_factory.mktemp("report") / "report.html", TRACES / "t5-stream"
    document = replay(HOSTILE, bins=4)
    document["verdict"] = verdict(document, [(3, 16)] * 20)
    vary = {"init_scale": "2^0..2^40"}
    swept = dlsim.sweep(trace, formats="bf16", policies="torch", vary=vary)
    log = dlsim.explain(LOGS / "megatron-steady.log")
    dlsim.report([trace, document, swept, log, dlsim.diff(trace, trace)], path, formats=["bf16"])
    return path


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    paths = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    assert None not in paths.values(), "expected apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = paths["chromium"]
    for word in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1280,1000"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(paths["chromedriver"]))
    chrome.set_script_timeout(120)
    yield chrome
    chrome.quit()


@pytest.fixture
def browser(driver: webdriver.Chrome, page: Path) -> webdriver.Chrome:
    """The page with all its figures drawn."""
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    ready = "return document.body.dataset.ready"
    WebDriverWait(driver, 120).until(lambda d: d.execute_script(ready))
    driver.execute_async_script("drawAll().then(arguments[0])")
    return driver


def cells(browser: webdriver.Chrome, section: str, column: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".filter(row => row.getClientRects().length)"
        ".map(row => row.cells[arguments[1]].textContent)"
    )
    return browser.execute_script(script, section, column)


def click(browser: webdriver.Chrome, css: str) -> Any:
    element = browser.find_element(By.CSS_SELECTOR, css)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()
    return element


def test_all_figures_are_drawn_without_errors_and_requests(browser: webdriver.Chrome) -> None:
    charts = browser.find_elements(By.CSS_SELECTOR, "[data-figure]")
    shown = [chart for chart in charts if chart.is_displayed()]
    assert len(charts) > len(shown) >= 8
    assert all(chart.find_elements(By.CSS_SELECTOR, ".main-svg") for chart in shown)
    assert browser.find_element(By.ID, "problem").text == ""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    urls = [each["request"]["url"].partition(":")[0] for each in sent]
    assert urls.count("file") == 1 and set(urls) <= {"file", "data", "blob"}
    assert browser.get_log("browser") == []
    script = "return document.querySelectorAll('img, iframe, .chart a, .chart script').length"
    assert browser.execute_script(script) == 0
    script = "return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"
    buttons = {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}  # none sends charts away
    assert set(browser.execute_script(script)) == buttons


def test_the_policy_of_the_page_forbids_foreign_scripts_and_fetches(
    browser: webdriver.Chrome,
) -> None:
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        "document.body.append(s);"
    )
    code = "const d = arguments[0]; fetch('https://example.invalid').then(() => d(1), () => d(0))"
    assert browser.execute_async_script(code) == 0
    assert browser.execute_script("return window.pwned") is None


def test_tables_sort_and_filter_and_show_one_run(browser: webdriver.Chrome) -> None:
    head = "#losses [data-run='0'] thead th:nth-child({}) button"
    harms = cells(browser, "losses", 0)
    click(browser, head.format(10))
    counts = [int(cell.replace(",", "")) for cell in cells(browser, "losses", 9)]
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 2
    button = browser.find_element(By.CSS_SELECTOR, head.format(1))
    button.send_keys(Keys.ENTER)
    names = cells(browser, "losses", 0)
    assert names == sorted(harms) != harms
    assert browser.execute_script("return arguments[0].parentNode.ariaSort", button) == "ascending"
    button.send_keys(Keys.ENTER)
    assert cells(browser, "losses", 0) == names[::-1]
    browser.find_element(By.CSS_SELECTOR, "#losses [data-run='0'] input").send_keys("WO.weight")
    assert cells(browser, "losses", 0) == [name for name in names[::-1] if "wo.weight" in name]
    Select(browser.find_element(By.CSS_SELECTOR, "#losses select")).select_by_index(1)
    assert set(HOSTILE[:2]) <= set(cells(browser, "losses", 0))
    browser.execute_async_script("drawAll().then(arguments[0])")
    assert browser.get_log("browser") == []


def test_the_slider_moves_formats_over_the_gradients(browser: webdriver.Chrome) -> None:
    state = (
        "const e = document.querySelector('#exponents .chart');"
        "return [e.layout.sliders[0].active, e.data[1].x[0], e.layout.shapes[1].x0]"
    )
    before = browser.execute_script(state)
    rail = browser.find_element(By.CSS_SELECTOR, "#exponents .slider-rail-touch-rect")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", rail)
    webdriver.ActionChains(browser).move_to_element(rail).click().perform()
    after = WebDriverWait(browser, 20).until(
        lambda d: (now := d.execute_script(state))[1] != before[1] and now
    )
    moved = after[0] - before[0]  # a larger scale holds smaller gradients
    assert moved != 0
    assert after[1:] == [pytest.approx(value - moved) for value in before[1:]]


def test_colors_follow_the_system_and_nothing_sticks_out(browser: webdriver.Chrome) -> None:
    script = (
        "const e = document.querySelector('.chart');"
        "return [e._fullLayout.font.color, getComputedStyle(document.body).backgroundColor]"
    )
    light = browser.execute_script(script)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    wait = WebDriverWait(browser, 20)
    wait.until(lambda d: not set(light) & set(d.execute_script(script)))
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    width = "return document.documentElement.scrollWidth"
    wait.until(lambda d: d.execute_script(width) <= 400)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
