# SPDX-License-Identifier: Apache-2.0
"""What the batches of an accumulated step leave is put aside in files, and none of it is lost."""

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recording import load, small_model, steps_in
from torch import nn

import dlsim
from dlsim.recorder import Watch, _output, _sources

BATCHES = 3
Loop = Callable[[nn.Module, dlsim.Recorder], None]


@pytest.fixture(autouse=True)
def little_stays_in_memory(monkeypatch) -> None:
    monkeypatch.setattr(_sources, "SPILLED_FROM", 0)
    monkeypatch.setattr(_output, "_LOADED_AT_ONCE", 100)


def accumulate(model: nn.Module, rec: dlsim.Recorder) -> None:
    torch.manual_seed(1)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        for _ in range(BATCHES):
            (model(torch.randn(4, 6)).square().mean() * 8).backward()
        rec.step(scale=8.0)


def share_a_trunk(model: nn.Module, rec: dlsim.Recorder) -> None:
    hidden = model[0](torch.ones(4, 6)).relu()
    model[2](hidden).mean().backward(retain_graph=True)
    model[2](hidden * 2).sum().backward()
    rec.step(scale=1.0)


def both_ways(
    path: Path, monkeypatch, loop: Loop, name: str | None, **options
) -> list[dlsim.Recorder]:
    """Records twice: what is put aside in files in path/0, what is held in memory in path/1."""
    recorders = []
    for i, limit in enumerate((0, 1 << 40)):
        monkeypatch.setattr(_sources, "SPILLED_FROM", limit)
        model = small_model()
        place = None if name is None else path / str(i) / name
        with dlsim.Recorder(model, place, **options) as rec:
            loop(model, rec)
        assert rec.report().messages == []
        recorders.append(rec)
    return recorders


@pytest.mark.parametrize("loop", [accumulate, share_a_trunk])
def test_traces_are_the_same(tmp_path: Path, monkeypatch, loop) -> None:
    aside, held = both_ways(tmp_path, monkeypatch, loop, "run")
    assert set(aside.report().tensors) == set(held.report().tensors)
    for step in steps_in(tmp_path / "1/run"):
        found, metadata = load(tmp_path / "0/run", step)
        expected, expected_metadata = load(tmp_path / "1/run", step)
        assert metadata == expected_metadata
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert "0.call1.act_grad" in found or loop is share_a_trunk
    left = {path.name for path in (tmp_path / "0/run").iterdir()}
    assert left == {path.name for path in (tmp_path / "1/run").iterdir()}
    assert dlsim.replay(tmp_path / "0/run")["runs"] == (dlsim.replay(tmp_path / "1/run")["runs"])


def _figures(found):
    """Returns what was found, but for what depends on the order of the tensors.

    That is which of several that are equally bad is named, and how sums are rounded.
    """
    if isinstance(found, float):
        return float(f"{found:.12g}")
    if isinstance(found, list):
        return [_figures(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {key: _figures(one) for key, one in found.items() if not key.endswith("_tensor")}


@pytest.mark.parametrize("loop", [accumulate, share_a_trunk])
def test_profiles_are_the_same(tmp_path: Path, monkeypatch, loop) -> None:
    both_ways(tmp_path, monkeypatch, loop, "run.profile")
    aside, held = (dlsim.replay(tmp_path / number / "run.profile") for number in "01")
    for one, other in zip(aside["runs"], held["runs"], strict=True):
        assert _figures(one["steps"]) == _figures(other["steps"])
        tensors = [sorted(run["tensors"], key=lambda row: row["name"]) for run in (one, other)]
        assert tensors[0] == tensors[1]
    assert [path.name for path in (tmp_path / "0").iterdir()] == ["run.profile"]


def test_dry_runs_and_watches_see_the_same(tmp_path: Path, monkeypatch) -> None:
    shown: list[dict] = []
    watch = Watch(lambda _, figures: shown.append(figures), every=1)
    aside, held = both_ways(tmp_path, monkeypatch, accumulate, None, watch=watch)
    assert aside.report().step_bytes == held.report().step_bytes > 0
    # The order of tensors differs, and with it how far their names compress.
    assert aside.report().bytes == pytest.approx(held.report().bytes, rel=0.01)
    assert len(shown) == 4 and _figures(shown[:2]) == _figures(shown[2:])


def test_gradients_of_batches_before_are_free(tmp_path: Path) -> None:
    model, held = small_model(), []
    with dlsim.Recorder(model, tmp_path) as rec:
        for _ in range(8):
            output = model(torch.ones(4, 6))
            output.register_hook(lambda gradient: held.append(weakref.ref(gradient)))
            output.sum().backward()
        assert len(held) == 8 and sum(one() is not None for one in held) <= 2
        rec.step(scale=1.0)
    assert rec.errors == 0


def test_a_step_that_cannot_be_put_aside_is_an_error_and_is_not_recorded(tmp_path: Path) -> None:
    model = small_model()
    (tmp_path / ".spill-0").touch()
    with dlsim.Recorder(model, tmp_path) as rec:
        accumulate(model, rec)
    assert rec.errors >= 2 and steps_in(tmp_path) == []
    assert ".spill-0" in rec.report().messages[0]


def test_nothing_of_a_step_that_is_not_recorded_gets_into_the_next(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, every=2) as rec:
        for step in (0, 1, 3, 4):  # the recorder expects 2 where it is told 3
            model.zero_grad()
            for _ in range(BATCHES if step != 4 else 1):
                model(torch.ones(4, 6)).sum().backward()
            rec.step(scale=1.0, step=step)
    assert rec.errors == 0 and steps_in(tmp_path) == [0, 4]
    assert "0.call1.act_grad" not in load(tmp_path, 4)[0]


def test_a_last_micro_step_that_is_forgotten_is_an_error(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, micro_steps=True) as rec:
        for calls in (2, 1, 2):
            model.zero_grad()
            for micro in range(2):
                model(torch.randn(4, 6)).square().mean().backward()
                if micro < calls:
                    rec.micro_step(scale=1.0)
            rec.step()
    assert rec.errors == 1 and sorted(set(steps_in(tmp_path))) == [0, 2]
    assert "micro_step was not called after the last" in rec.report().messages[0]
