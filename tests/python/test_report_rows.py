# SPDX-License-Identifier: Apache-2.0
"""What can be seen: all layers of a large model, names that differ, ticks, colors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from report_browser import Driver, chart, chromium, hover, opened, problems
from report_samples import replay, run_of, unpacked
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import dlsim
from dlsim.report._names import NameTable, in_order
from dlsim.report.heat_map import MAX_BINS, heat_maps
from dlsim.traces._writer import TraceWriter

PARTS = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def browser() -> Iterator[Driver]:
    yield from chromium()


def large_model(folder: Path, layers: int) -> Path:
    """A page on a trace with this number of layers; one in the middle becomes zero in fp16."""
    names = [f"model.layers.{i // 4}.{PARTS[i % 4]}.weight.grad" for i in range(layers)]
    tensors = {
        name: np.array([2.0 ** (-30 if name == names[layers // 2 + 2] else -4)], np.float32)
        for name in names
    }
    with TraceWriter(folder / "trace") as writer:
        for step in range(2):
            writer.write(step, tensors)
    options = {"formats": "fp16", "policies": "static"}
    result = dlsim.replay(folder / "trace", **options)
    dlsim.report.write_report(result, folder / "report.html")
    return folder / "report.html"


def test_no_layer_of_a_large_model_vanishes(browser: Driver, tmp_path: Path) -> None:
    opened(browser, large_model(tmp_path, 2000))
    for name, frame in (("exponent-layers", 80), ("heat-map", 130)):
        drawn = chart(browser, name)
        cells = drawn["data"][0]["z"]
        assert drawn["data"][0]["ygap"] == 0
        assert (drawn["layout"]["height"] - frame) / len(cells) >= 2  # pixels
        assert all(any(value is not None for value in row) for row in cells)
        labels = drawn["layout"]["yaxis"]["ticktext"]
        assert len(set(labels)) == len(labels) > 20
        numbers = [int(re.findall(r"\d+", label)[0]) for label in labels]
        assert numbers == sorted(numbers)
    note = browser.find_element(By.ID, "exponent-rows").text
    assert note == "Each row joins 5 neighbors and shows the largest share among them."
    assert "Each row joins 5 neighbors" in browser.find_element(By.ID, "heat-summary").text
    harm = [row[0] for row in chart(browser, "heat-map")["data"][1]["z"]]
    assert [row for row, share in enumerate(harm) if share is not None] == [200]
    hover(browser, "heat-map", 0, 200)
    tip = browser.find_element(By.CSS_SELECTOR, ".tip")
    WebDriverWait(browser, 20).until(lambda _: tip.is_displayed())
    assert "the worst of 5 neighboring rows here" in tip.text.split("\n")
    assert problems(browser) == []


def test_names_are_cut_where_they_agree(browser: Driver, tmp_path: Path) -> None:
    opened(browser, large_model(tmp_path, 8))
    shown = {
        "layers": [f"model.decoder.layers.{i}.self_attention.{p}" for i in (2, 11) for p in "qk"],
        "long": ["a" * 50 + "1", "a" * 50 + "2"],
        "cut alike": ["b" * 20 + "1" + "b" * 20, "b" * 20 + "2" + "b" * 20],
        "one": ["c" * 50],
        "none": [],
    }
    script = "return Rows.labels(arguments[0], 24)"
    found = {key: browser.execute_script(script, names) for key, names in shown.items()}
    assert found["layers"] == [
        f"model.\u2026layers.{i}.self_\u2026{p}" for i in (2, 11) for p in "qk"
    ]
    assert found["long"] == [f"{'a' * 12}\u2026{'a' * 10}{i}" for i in (1, 2)]
    assert found["cut alike"] == shown["cut alike"]
    assert found["one"] == [f"{'c' * 12}\u2026{'c' * 11}"]
    assert found["none"] == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["h.0", "h.1", "h.11", "h.2"], ["h.0", "h.1", "h.2", "h.11"]),
        (["wte", "h.0", "h.10", "h.9", "ln_f"], ["wte", "h.0", "h.9", "h.10", "ln_f"]),
        (["b10x", "b2x", "b2a"], ["b2x", "b2a", "b10x"]),
        (["layers", "layers.7", "", "12", "3"], ["layers", "layers.7", "", "3", "12"]),
    ],
)
def test_numbers_in_names_count_up(names: list[str], expected: list[str]) -> None:
    assert [names[i] for i in in_order(names)] == expected


def test_rows_of_a_heat_map_are_in_order() -> None:
    names = [f"h.{i}.{part}.grad" for i in (0, 10, 2) for part in ("weight", "bias")]
    run = run_of(replay(names, bins=2))
    table = NameTable()
    found = unpacked(heat_maps([run], table)[0] or "")
    assert [table.names[row[0]] for row in found["tensors"]] == [
        f"h.{i}.{part}.grad" for i in (0, 2, 10) for part in ("weight", "bias")
    ]
    assert [table.names[row[0]] for row in found["layers"]] == ["h.0", "h.2", "h.10"]


def test_more_bins_than_pixels_are_joined() -> None:
    run = run_of(replay(steps=3000, formats=("fp16",), bins=3000))
    found = unpacked(heat_maps([run], NameTable())[0] or "")
    assert len(found["first"]) == 375 <= MAX_BINS
    assert sum(found["steps"]) == 3000 and found["last"][-1] == 2999


def test_ticks_of_logarithms_are_powers(browser: Driver, tmp_path: Path) -> None:
    opened(browser, large_model(tmp_path, 8))
    expected = {
        (0.564, 1.027): ["0.5", "1", "2"],
        (3, 3): ["2", "4"],
        (0.01, 0.9): ["2\u207b\u2077", "2\u207b\u2075", "0.125", "0.5", "2"],
        (1e-9, 1e3): ["10\u207b\u2079", "10\u207b\u2076", "10\u207b\u00b3", "1", "1000"],
        (5e30, 6e30): ["2\u00b9\u2070\u00b9", "2\u00b9\u2070\u00b2", "2\u00b9\u2070\u00b3"],
    }
    for values, ticks in expected.items():
        axis = browser.execute_script("return Report.logAxis(arguments[0])", values)
        assert axis["ticktext"] == ticks
        low, high = (10**end for end in axis["range"])
        assert low * (1 - 1e-9) <= min(values) <= max(values) <= high * (1 + 1e-9)
    chart(browser, "scale-path")  # of a scale that never moves
    script = "return Report.element('scale-path')._fullLayout.yaxis.dtick"
    assert browser.execute_script(script) >= 1


def test_colors_can_be_told_from_the_ground() -> None:
    css = (Path(dlsim.__file__).parent / "report/assets/page.css").read_text()
    for palette in re.findall(r":root[^{]*{([^}]*)}", css):
        colors = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", palette))
        texts = ["ink", "soft", "accent", "good", "fair", "bad"]
        texts += [name for name in colors if name.startswith("c-")]
        assert len(texts) == 13
        for name in texts:  # the hues name axes and formats, too
            assert contrast(colors[name], colors["card"]) >= 4.5, name
        assert contrast(colors["quiet"], colors["card"]) >= 3  # lines


def contrast(a: str, b: str) -> float:
    """The ratio of WCAG 2."""
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
