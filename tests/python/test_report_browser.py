# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium: opens from the disk, fetches nothing, and its controls work.

Needs the Debian packages chromium and chromium-driver, and selenium.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_browser import (
    Driver,
    chart,
    chromium,
    click,
    hover,
    opened,
    problems,
    reveal,
    rows,
)
from report_samples import HOSTILE, TRACES, command, diff, replay, sweep, tune, verdict
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import dlsim


@pytest.fixture(scope="module")
def browser() -> Iterator[Driver]:
    yield from chromium()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section: real results and hostile names."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    formats = ("--format", "fp16", "--format", "bf16")
    policies = ("--policy", "torch", "--policy", "static")
    result = command("replay", TRACES / "lm-trouble-cut", *formats, *policies, "--heat-map")
    dlsim.report.write_report([result, sweep(), tune(), diff(path.parent)], path)
    return path


def test_a_page_opens_from_disk_without_errors_and_requests(browser: Driver, page: Path) -> None:
    opened(browser, page)
    reveal(browser)
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    windows = browser.find_elements(By.CSS_SELECTOR, '.chart[data-chart="windows"]')
    assert len(charts) == 10 + len(windows)
    assert all(c.find_elements(By.CSS_SELECTOR, ".main-svg") for c in charts)
    assert browser.find_element(By.ID, "problem").text == ""
    assert problems(browser) == []


def test_the_policy_of_the_page_forbids_foreign_scripts_and_fetches(
    browser: Driver, page: Path
) -> None:
    opened(browser, page)
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        "document.body.append(s);"
        "const i = new Image(); i.src = 'https://example.invalid/x.png'; document.body.append(i);"
    )
    code = "const d = arguments[0]; fetch('https://example.invalid').then(() => d(1), () => d(0))"
    assert browser.execute_async_script(code) == 0
    assert browser.execute_script("return window.pwned") is None
    log = " ".join(e["message"] for e in browser.get_log("browser"))
    assert log.count("Content Security Policy") >= 3


def test_no_button_sends_charts_away(browser: Driver, page: Path) -> None:
    opened(browser, page)
    reveal(browser)
    script = "return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"
    assert set(browser.execute_script(script)) == {
        "Download plot as a PNG", "Zoom", "Pan", "Reset axes",
    }  # fmt: skip


def test_a_run_is_chosen_for_all_sections(browser: Driver, page: Path) -> None:
    opened(browser, page)
    reveal(browser)
    assert "fp16 \u00b7 torch" in browser.find_element(By.ID, "path-summary").text
    Select(browser.find_element(By.ID, "run")).select_by_index(1)
    reveal(browser)
    assert "fp16 \u00b7 static" in browser.find_element(By.ID, "path-summary").text
    assert "fp16 \u00b7 static" in browser.find_element(By.ID, "heat-summary").text
    names = [trace["name"] for trace in chart(browser, "scale-path")["data"] if trace["x"]]
    assert any("applied" in name for name in names)  # static applies what is not finite
    click(browser, '.pick[data-run="2"]')
    reveal(browser)
    assert browser.find_element(By.ID, "run").get_attribute("value") == "2"
    assert "bf16 \u00b7 torch" in browser.find_element(By.ID, "path-summary").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#policies-table tr.chosen")) == 1


def test_tables_sort_by_mouse_and_keyboard(browser: Driver, page: Path) -> None:
    opened(browser, page)
    click(browser, "#tensor-table thead th:nth-child(3) button")
    counts = [int(row[2].replace("\u202f", "")) for row in rows(browser, "tensor-table")]
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 2
    button = browser.find_element(By.CSS_SELECTOR, "#tensor-table thead th:nth-child(1) button")
    button.send_keys(Keys.ENTER)
    names = [row[0] for row in rows(browser, "tensor-table")]
    assert names == sorted(names)
    assert browser.execute_script("return arguments[0].parentNode.ariaSort", button) == "ascending"
    button.send_keys(Keys.ENTER)
    assert [row[0] for row in rows(browser, "tensor-table")] == names[::-1]
    click(browser, "#policies-table thead th:nth-child(3) button")
    skipped = [int(row[2].split("/")[0]) for row in rows(browser, "policies-table")]
    assert skipped == sorted(skipped, reverse=True) and skipped[0] > skipped[-1]


def test_the_tensor_table_filters(browser: Driver, page: Path) -> None:
    opened(browser, page)
    box = browser.find_element(By.ID, "tensor-filter")
    everything = len(rows(browser, "tensor-table"))
    box.send_keys("QKV")
    found = [row[0] for row in rows(browser, "tensor-table")]
    assert 0 < len(found) < everything and all("qkv" in name for name in found)
    assert f"{len(found)} of {everything}" in browser.find_element(By.ID, "tensor-count").text
    box.clear()
    box.send_keys("*.bias.grad")
    assert all(row[0].endswith(".bias.grad") for row in rows(browser, "tensor-table"))
    box.clear()
    box.send_keys("no such tensor (")
    assert rows(browser, "tensor-table") == []
    box.clear()
    box.send_keys(" ")
    Select(browser.find_element(By.ID, "tensor-role")).select_by_index(2)
    assert {row[1] for row in rows(browser, "tensor-table")} == {"act_grad"}


def test_marks_of_the_scale_path_tell_step_scale_cause_and_tensor(
    browser: Driver, page: Path
) -> None:
    opened(browser, page)
    drawn = chart(browser, "scale-path")
    marks = {t["name"]: t for t in drawn["data"] if t["mode"] == "markers"}
    assert set(marks) == {"overflow (2)", "input (4)"}
    assert len({t["marker"]["color"] for t in marks.values()}) == 2
    text = marks["overflow (2)"]["text"][0]
    for word in ("step 168", "skipped", "cause: overflow", "scale ", "tensor: ", "a lower scale"):
        assert word in text
    x, y = marks["overflow (2)"]["x"][0], marks["overflow (2)"]["y"][0]
    hover(browser, "scale-path", x, y)
    shown = WebDriverWait(browser, 20).until(
        lambda d: d.find_elements(By.CSS_SELECTOR, '[data-chart="scale-path"] .hovertext')
    )
    assert "cause: overflow" in shown[0].text


def test_windows_have_gaps_and_the_paths_of_their_format(browser: Driver, tmp_path: Path) -> None:
    document = replay(steps=8, formats=("fp16", "cb16"), policies=("torch", "static"))
    windows = [(3, 16), (3, 16), (5, 16), (None, None), (4, 12), (4, 12), (4, 12), (4, 12)]
    document["verdict"] = verdict(document, windows)
    path = tmp_path / "report.html"
    dlsim.report.write_report(document, path)
    opened(browser, path)
    drawn = chart(browser, "windows")
    band = drawn["data"][0]
    assert band["fill"] == "toself"
    assert band["x"][:4] == [0, 2, 2, 3] and band["x"].count(None) == 2  # two pieces
    assert [max(y for y in band["y"] if y is not None), min(filter(None, band["y"]))] == [16, 3]
    names = [trace["name"] for trace in drawn["data"] if trace.get("showlegend") is not False]
    runs = ["fp16 \u00b7 torch", "fp16 \u00b7 static"]
    assert names == ["safe loss scales", *runs, "use 2<sup>14</sup>", "no scale is safe"]
    assert drawn["data"][-1]["text"] == ["step 3: no scale is safe"]
    assert drawn["layout"]["yaxis"]["tickprefix"] == "2<sup>"
    assert problems(browser) == []


def test_other_runs_can_be_hidden(browser: Driver, page: Path) -> None:
    opened(browser, page)
    lines = [t for t in chart(browser, "scale-path")["data"] if t["mode"] == "lines"]
    assert len(lines) == 4
    click(browser, "#path-others")
    lines = [t for t in chart(browser, "scale-path")["data"] if t["mode"] == "lines"]
    assert len(lines) == 1


def test_heat_maps_switch_share_rows_and_order(browser: Driver, page: Path) -> None:
    opened(browser, page)
    layers = chart(browser, "heat-map")
    assert "harm" in browser.find_element(By.ID, "heat-summary").text
    assert browser.find_element(By.ID, "heat-lost").text == "harm"
    click(browser, 'input[name="heat-metric"][value="2"]')
    underflow = chart(browser, "heat-map")
    assert "underflow" in browser.find_element(By.ID, "heat-summary").text
    assert underflow["data"][1]["z"] != layers["data"][1]["z"]
    click(browser, 'input[name="heat-rows"][value="tensors"]')
    tensors = chart(browser, "heat-map")
    assert len(tensors["data"][1]["z"]) > len(underflow["data"][1]["z"])
    Select(browser.find_element(By.ID, "heat-order")).select_by_value("worst")
    ordered = chart(browser, "heat-map")
    worst = [max((v for v in row if v is not None), default=-99) for row in ordered["data"][1]["z"]]
    assert worst == sorted(worst, reverse=True)
    Select(browser.find_element(By.ID, "heat-role")).select_by_value("act_grad")
    assert len(chart(browser, "heat-map")["data"][1]["z"]) == 1


def test_a_cell_of_the_heat_map_tells_its_share_and_leads_to_its_layer(
    browser: Driver, page: Path
) -> None:
    opened(browser, page)
    hover(browser, "heat-map", 0, 1)
    tip = browser.find_element(By.CSS_SELECTOR, ".tip")
    WebDriverWait(browser, 20).until(lambda _: tip.is_displayed())
    lines = tip.text.split("\n")
    assert lines[0] == "blocks.0.attn.qkv" and lines[1] == "step 0"
    assert "relative squared error" in tip.text
    ActionChains(browser).click().perform()
    layer = Select(browser.find_element(By.ID, "exponent-layer"))
    WebDriverWait(browser, 20).until(
        lambda _: layer.first_selected_option.text == "blocks.0.attn.qkv"
    )
    assert all("blocks.0.attn.qkv" in row[0] for row in rows(browser, "tensor-table"))


def test_heat_maps_of_older_results_begin_with_underflow(browser: Driver, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    dlsim.report.write_report(replay(bins=4), path)
    opened(browser, path)
    chart(browser, "heat-map")
    assert "underflow" in browser.find_element(By.ID, "heat-summary").text
    assert browser.find_element(By.ID, "heat-lost").text == "energy lost"
    click(browser, 'input[name="heat-metric"][value="3"]')
    chart(browser, "heat-map")
    assert "energy lost" in browser.find_element(By.ID, "heat-summary").text
    assert problems(browser) == []


def test_exponents_move_with_the_loss_scale(browser: Driver, page: Path) -> None:
    opened(browser, page)
    before = chart(browser, "exponents")
    shares = rows(browser, "exponent-lost")
    assert [row[0] for row in shares] == ["fp16", "bf16", "cb16"]
    slider = browser.find_element(By.ID, "exponent-scale")
    value = int(slider.get_attribute("value"))
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
    slider.send_keys(Keys.ARROW_LEFT * 4)
    after = chart(browser, "exponents")
    assert int(slider.get_attribute("value")) == value - 4
    # A lower scale moves the formats to larger gradients.
    assert after["data"][1]["x"][0] == pytest.approx(before["data"][1]["x"][0] + 4)
    assert after["data"][0]["y"] == before["data"][0]["y"]
    assert rows(browser, "exponent-lost") != shares
    click(browser, '[data-scale="one"]')
    assert browser.find_element(By.ID, "exponent-scale-text").text == "2\u2070"
    Select(browser.find_element(By.ID, "exponent-layer")).select_by_index(1)
    assert sum(chart(browser, "exponents")["data"][0]["y"]) < sum(before["data"][0]["y"])


def test_points_of_the_sweep_tell_their_parameters(browser: Driver, page: Path) -> None:
    opened(browser, page)
    drawn = chart(browser, "pareto")
    front = [t for trace in drawn["data"] for t in trace.get("text", []) if "on the front" in t]
    assert len(front) == len(sweep()["pareto"]) >= 1
    assert all("init_scale 2" in text for text in front)


def test_differences_stand_at_their_steps_beside_the_threshold(browser: Driver, page: Path) -> None:
    opened(browser, page)
    drawn = chart(browser, "differences")
    steps, threshold = drawn["data"]
    assert steps["x"] == [step.number for step in dlsim.open_trace(TRACES / "lm-trouble-cut")]
    assert threshold["y"] == [-4, -4]
    differ = [not text.split("<br>")[1].endswith(" 0.00") for text in steps["text"]]
    assert differ.count(False) == 3  # all NaN in both
    assert [y > -4 for y in steps["y"]] == differ


def test_configuration_is_copied(browser: Driver, page: Path) -> None:
    opened(browser, page)
    click(browser, ".copy")
    wait = WebDriverWait(browser, 20)
    wait.until(lambda d: d.find_element(By.CSS_SELECTOR, ".copy").text == "Copied")


def test_colors_follow_the_system(browser: Driver, page: Path) -> None:
    opened(browser, page)
    colors = {}
    for theme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        script = "return [Report.color('ink'), getComputedStyle(document.body).backgroundColor]"
        ink, background = browser.execute_script(script)
        # The chart follows in an event of its own.
        WebDriverWait(browser, 20).until(
            lambda d, ink=ink: chart(d, "fates")["layout"]["font"]["color"] == ink
        )
        colors[theme] = (background, ink)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colors["light"][0] != colors["dark"][0] and colors["light"][1] != colors["dark"][1]


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_sticks_out(browser: Driver, page: Path, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened(browser, page)
    reveal(browser)
    found = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert found <= width


def test_hostile_names_are_shown_and_not_obeyed(browser: Driver, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    dlsim.report.write_report(replay(HOSTILE, bins=4), path, title=HOSTILE[0])
    opened(browser, path)
    click(browser, 'input[name="heat-rows"][value="tensors"]')
    reveal(browser)
    assert problems(browser) == []
    names = {row[0] for row in rows(browser, "tensor-table")}
    assert HOSTILE[0] in names and HOSTILE[1] in names and HOSTILE[6] in names
    script = "return document.querySelectorAll('img, .chart a, .chart b, iframe').length"
    assert browser.execute_script(script) == 0
    assert browser.title == HOSTILE[0]
    hover(browser, "heat-map", 0, 0)
    tip = browser.find_element(By.CSS_SELECTOR, ".tip")
    WebDriverWait(browser, 20).until(lambda _: tip.is_displayed())
    assert HOSTILE[0] in tip.text


def test_a_large_page_opens(browser: Driver, tmp_path: Path) -> None:
    names = [f"model.layers.{i // 10}.part{i % 10}.weight.grad" for i in range(1000)]
    path = tmp_path / "report.html"
    dlsim.report.write_report(replay(names, 10_000, ("fp16", "cb16"), bins=200), path)
    opened(browser, path)
    click(browser, 'input[name="heat-rows"][value="tensors"]')
    assert len(chart(browser, "heat-map")["data"][1]["z"]) == 334  # three rows in each
    assert len(rows(browser, "tensor-table")) == 200
    click(browser, "#tensor-more")
    assert len(rows(browser, "tensor-table")) == 1000
    assert problems(browser) == []
