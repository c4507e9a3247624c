# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium for the tests of the report: opens pages, points and clicks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

Driver = webdriver.Chrome


def chromium() -> Iterator[Driver]:
    """Starts Chromium; fails clearly where it is not installed."""
    paths = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        pytest.fail(f"{missing}: not found, expected apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = paths["chromium"]
    for word in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1280,1000"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(paths["chromedriver"]))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def opened(browser: Driver, path: Path) -> Driver:
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())
    WebDriverWait(browser, 60).until(
        lambda d: d.execute_script("return document.body.dataset.ready")
    )
    return browser


def reveal(browser: Driver, name: str = "") -> None:
    """Draws a chart or all, also out of view, and waits for what is being drawn."""
    code = "const done = arguments[1]; Report.revealAll(arguments[0]).then(() => done())"
    browser.execute_async_script(code, name)


def chart(browser: Driver, name: str) -> Any:
    """What Plotly has drawn: its traces and its layout."""
    reveal(browser, name)
    script = (
        "const e = Report.element(arguments[0]);"
        "return JSON.stringify({data: e.data, layout: e.layout})"
    )
    return json.loads(browser.execute_script(script, name))


def problems(browser: Driver) -> list[str]:
    requests = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if not url.startswith(("data:", "blob:")):
                requests.append(url)
    return [*(e["message"] for e in browser.get_log("browser")), *requests[1:]]


def click(browser: Driver, css: str) -> None:
    element = browser.find_element(By.CSS_SELECTOR, css)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def hover(browser: Driver, name: str, x: float, y: float) -> None:
    """Moves the pointer to a point of a chart, in the units of its axes."""
    reveal(browser, name)
    plot = browser.find_element(By.CSS_SELECTOR, f'[data-chart="{name}"] .nsewdrag')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    script = (
        "const l = Report.element(arguments[0])._fullLayout;"
        "return [l.xaxis.l2p(arguments[1]) - l.xaxis._length / 2,"
        "        l.yaxis.l2p(arguments[2]) - l.yaxis._length / 2]"
    )
    right, down = (round(offset) for offset in browser.execute_script(script, name, x, y))
    pointer = ActionChains(browser).move_to_element_with_offset(plot, right + 3, down)
    pointer.move_to_element_with_offset(plot, right, down).perform()


def rows(browser: Driver, table: str) -> list[list[str]]:
    script = (
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )
    return browser.execute_script(script, table)
