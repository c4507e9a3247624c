# SPDX-License-Identifier: Apache-2.0
"""The verdict of a result: read from its JSON, and first in what a result looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dlsim

TRACES = Path(__file__).parents[1] / "data" / "traces"
VERDICTS = ("as is", "with a scale", "no scale serves", "overflows")

SAMPLE = {
    "formats": [
        {
            "format": "fp16",
            "verdict": "with a scale",
            "window": [8.0, 65536.0],
            "scale": 16384.0,
            "steps": [[10, 8.0, 65536.0], [11, None, None]],
            "steps_outside_window": 1,
            "mean_harm": 0.0003,
            "tensors_at_risk": [
                {
                    "name": "fc.act_grad",
                    "mean_harm": 0.02,
                    "worst_harm": 0.5,
                    "first_step": 3,
                    "last_step": 9,
                }
            ],
            "noise_tensors": ["convs.1.bias.grad"],
            "a_key_of_later": 1,
        },
        {
            "format": "e4m3",
            "verdict": "no scale serves",
            "window": None,
            "scale": None,
            "steps_outside_window": 2,
            "tensors_at_risk": [],
        },
    ],
    "best": "fp16",
    "lines": ["Use fp16 with a loss scale of 2^14.", "Not e4m3 <at all>.", "At risk: fc."],
    "parameters_only": True,
    "paths": [
        {
            "format": "fp16",
            "policy": "torch",
            "steps_inside": 5,
            "steps_below": 1,
            "steps_above": 2,
            "steps_with_empty_window": 3,
        }
    ],
}


def read(folder: Path, **keys: Any) -> dlsim.Result:
    path = folder / "result.json"
    path.write_text(json.dumps({"schema": "dlsim.replay/1", "runs": [{}, {}], **keys}))
    return dlsim.read_result(path)


def test_a_verdict_is_read_from_a_file(tmp_path: Path) -> None:
    verdict = read(tmp_path, verdict=SAMPLE).verdict
    assert verdict.lines == SAMPLE["lines"] and str(verdict) == "\n".join(SAMPLE["lines"])
    assert verdict.best == "fp16" and verdict.parameters_only
    assert [found.format for found in verdict] == ["fp16", "e4m3"]
    best, other = verdict.formats
    assert verdict["fp16"] is best and best.serves and not other.serves
    assert (best.window, best.scale, best.steps_outside_window) == ([8, 65536], 16384, 1)
    assert best.tensors_at_risk.name == ["fc.act_grad"]
    assert best.noise_tensors == ["convs.1.bias.grad"] and best.mean_harm == 0.0003
    assert best.windows == [
        {"step": 10, "low": 8, "high": 65536},
        {"step": 11, "low": None, "high": None},
    ]
    assert (other.window, other.scale) == (None, None)
    assert [(path.policy, path.steps_below) for path in verdict.paths] == [("torch", 1)]
    assert verdict["lines"] is verdict.lines and dict(verdict)["best"] == "fp16"
    with pytest.raises(KeyError, match=r"^no format or key 'bf16'.*, expected one of fp16, e4m3$"):
        verdict["bf16"]
    with pytest.raises(AttributeError, match=r"^no format or key 'mean_harm'"):
        _ = verdict.mean_harm


def test_the_verdict_is_first_in_what_is_shown(tmp_path: Path) -> None:
    result = read(tmp_path, verdict=SAMPLE)
    lines = SAMPLE["lines"]
    assert repr(result).split("\n") == [*lines, "<dlsim.Result dlsim.replay/1: 2 runs>"]
    assert str(result) == repr(result)
    html = result._repr_html_()
    assert html.startswith(f"<p>{lines[0]}</p><p>Not e4m3 &lt;at all&gt;.</p><p>{lines[2]}</p>")
    # The report begins with the same lines, wrapped.
    wrapped = "Use fp16 with a\n  loss scale of 2^14.\nNot e4m3 <at all>.\nAt risk: fc.\n\nmore\n"
    html = dlsim.Result(result, report=wrapped)._repr_html_()
    assert html.endswith("<pre>more\n</pre>") and html.count("Use fp16") == 1


@pytest.mark.parametrize("keys", [{}, {"verdict": None}, {"schema": "dlsim.x/1", "verdict": "x"}])
def test_results_without_a_verdict_say_so(tmp_path: Path, keys: dict[str, Any]) -> None:
    result = read(tmp_path, **keys)
    assert not isinstance(result.get("verdict"), dlsim.results.Verdict)
    assert repr(result).startswith("<dlsim.Result")
    assert result._repr_html_().startswith("<p><b>")


@pytest.mark.parametrize(
    "verdict", [{}, {"formats": 3}, {"lines": None}, {"formats": [3]}, {"formats": [None, {}]}]
)
def test_a_verdict_of_another_form_is_shown_without_it(tmp_path: Path, verdict: Any) -> None:
    assert repr(read(tmp_path, verdict=verdict)) == "<dlsim.Result dlsim.replay/1: 2 runs>"


@pytest.mark.parametrize("command", [dlsim.replay, dlsim.tune])
def test_the_command_gives_a_verdict(command: Any) -> None:
    result = command(TRACES / "cnn-digits", formats=["fp16", "bf16"])
    verdict = result.verdict
    assert not verdict.parameters_only
    assert len(verdict.lines) == 3 and verdict.best in verdict.lines[0]
    assert {found.format for found in verdict} == {"fp16", "bf16"} and verdict[verdict.best].serves
    for found in verdict:
        assert found.verdict in VERDICTS
        assert found.window is not None and found.scale is not None  # they differ by little
        assert found.window[0] <= found.scale <= found.window[1]
        assert len(found.windows) == 45
        for step in found.windows:
            assert (step.low is None) == (step.high is None)
            assert step.low is None or step.low <= step.high
    assert repr(result).startswith(verdict.lines[0])
    assert result._repr_html_().count(verdict.lines[0][:20]) == 1  # not in the report again


def test_other_commands_give_none() -> None:
    with pytest.raises(AttributeError, match=r"^no key 'verdict', expected one of schema, trace"):
        _ = dlsim.info(TRACES / "cnn-digits").verdict


def test_a_verdict_as_dictionaries_can_be_written_as_json() -> None:
    verdict = dlsim.replay(TRACES / "cnn-digits", formats="fp16", quiet=True).verdict
    found = json.loads(json.dumps(verdict.to_dict()))
    assert found["lines"] == verdict.lines
    assert found["formats"][0]["window"] == [2.0**-8, 2.0**16]


def test_a_mask_in_one_micro_step_is_one_in_a_profile(tmp_path: Path) -> None:
    trace, profile = tmp_path / "trace", tmp_path / "a.profile"
    trace.mkdir()
    masked = np.where(np.arange(64) % 3 == 0, -1e9, 1)
    for micro, output in enumerate((masked, np.linspace(-1, 3, 64))):
        tensors = {"w.grad": np.linspace(-0.01, 0.01, 64), "(root)/add.act": output}
        save_file(
            {name: values.astype(np.float32) for name, values in tensors.items()},
            trace / f"step-000000.micro-{micro}.safetensors",
        )
    dlsim.profile(trace, profile, quiet=True)
    of_trace, of_profile = (
        dlsim.replay(path, formats="fp16", quiet=True).verdict for path in (trace, profile)
    )
    assert of_profile.lines == of_trace.lines
    assert of_profile["fp16"].serves and "The constant of a mask" in of_profile.lines[1]


@pytest.mark.parametrize(
    ("names", "like"),
    [
        (("fc.bias", "fc.weight"), "a forward value or a weight"),
        (("optimizer.state.fc.weight.exp_avg", "step"), "the state of an optimizer"),
        (("exp_avg_sq.fc.weight.grad", "fc.grad"), "the state of an optimizer"),
        (("fc.grad", "my_exp_avg.grad"), None),
    ],
)
def test_the_first_screen_has_the_notes_on_what_was_read(
    tmp_path: Path, names: tuple[str, str], like: str | None
) -> None:
    path = tmp_path / "step-0.safetensors"
    save_file({name: np.ones(3, np.float32) for name in names}, path)
    result = dlsim.replay(path)
    said = " ".join(result.report.split())
    if like is None:
        assert "note:" not in said
    else:
        assert f"note: named like {like}, but treated as a gradient: {names[0]}" in said
