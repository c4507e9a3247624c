# SPDX-License-Identifier: Apache-2.0
"""TensorBoard histograms bracket what a replay of the gradients themselves finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_files import KINDS, Events, plugin_histogram, torch_histogram
from import_cases import one_error_line, replayed, run_dlsim, write_step
from tensorboard.compat.proto.summary_pb2 import Summary

from dlsim.importers import import_tensorboard

FORMATS = ("fp16", "bf16", "cb16")  # those that a profile counts exactly
ASKED = [word for name in FORMATS for word in ("--format", name)]
SCALES = (1.0, 2.0**15, 2.0**40)


def gradients(rng: np.random.Generator) -> np.ndarray:
    """Values over random binades, with zeros of both signs, tiny values and repeats."""
    size = int(rng.integers(1, 400))
    top = int(rng.integers(-45, 12))
    spread = int(rng.integers(1, 60))
    x = rng.standard_normal(size) * 2.0 ** (top - rng.integers(0, spread, size))
    x[rng.random(size) < rng.choice([0, 0.3])] = rng.choice([0.0, -0.0])
    if rng.random() < 0.2:
        x[:] = x[0]
    if rng.random() < 0.2:
        x = np.abs(x)
    if rng.random() < 0.2:
        x = x.astype(np.float16)
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def logged(directory: Path, seed: int, kind: str, scale: float = 1.0) -> dict[str, Any]:
    """Writes random gradients as a trace and as histograms."""
    rng = np.random.default_rng(seed)
    prefix = "kernel_grads/" if kind == "cerebras" else "grad/"
    with Events(directory / "logs") as events:
        for step in (0, 5, 17):
            tensors = {f"{prefix}{i}": gradients(rng) for i in range(3)}
            write_step(directory / "native", step, tensors)
            for tag, values in tensors.items():
                events.add(step, tag, KINDS[kind](values * np.float32(scale)))
    return {"prefix": prefix}


def truths(trace: Path, scale: float, *options: str) -> dict[str, dict[str, Any]]:
    """Returns what a replay finds: tensors by format and name."""
    given = ("--policy", "static", "--set", f"loss_scale={scale!r}", *options)
    runs = replayed(trace, *given)
    return {run["format"]: {tensor["name"]: tensor for tensor in run["tensors"]} for run in runs}


def check(directory: Path, scale: float, *options: str) -> None:
    """The counts of the gradients are between those of the two profiles, also with their zeros."""
    low, high, native = (
        truths(directory / name, scale, *options)
        for name in ("out.low.dlprof", "out.high.dlprof", "native")
    )
    assert {tag for tensors in native.values() for tag in tensors}
    for name, tensors in native.items():
        for tag, tensor in tensors.items():
            at_low, at_high = low[name][tag], high[name][tag]
            assert at_low["elements"] == tensor["elements"] == at_high["elements"]
            assert at_high["underflow"] <= tensor["underflow"] <= at_low["underflow"]
            fraction = tensor["underflow_fraction"]
            assert at_high["underflow_fraction"] <= fraction <= at_low["underflow_fraction"]
            assert at_low["overflow"] <= tensor["overflow"] <= at_high["overflow"]


@pytest.mark.parametrize("kind", ["torch", "tensorflow", "cerebras"])
@pytest.mark.parametrize("seed", [0, 1, 40])
def test_replays_of_the_two_profiles_bracket_the_truth(
    tmp_path: Path, kind: str, seed: int
) -> None:
    logged(tmp_path, seed, kind)
    imported = import_tensorboard(tmp_path / "logs", tmp_path / "out")
    assert imported.path == tmp_path / "out.low.dlprof"
    assert imported.high == tmp_path / "out.high.dlprof"
    for scale in SCALES:
        check(tmp_path, scale, *ASKED)


def test_the_scale_path_of_an_elementwise_policy_is_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    with Events(tmp_path / "logs") as events:
        for step in range(40):
            values = (rng.standard_normal(60) * 2.0 ** rng.integers(-3, 3)).astype(np.float32)
            write_step(tmp_path / "native", step, {"grad/w": values})
            events.add(step, "grad/w", torch_histogram(values))
    import_tensorboard(tmp_path / "logs", tmp_path / "out")
    options = ("--format", "fp16", "--policy", "torch", "--set", "growth_interval=3")

    def path(trace: Path) -> list[Any]:
        (run,) = replayed(trace, *options)
        return [(step["scale"], step["skipped"]) for step in run["steps"]]

    native = path(tmp_path / "native")
    assert len({scale for scale, _ in native}) > 2 and any(skipped for _, skipped in native)
    assert path(tmp_path / "out.low.dlprof") == native
    assert path(tmp_path / "out.high.dlprof") == native


def test_buckets_of_equal_width_tell_the_largest_magnitude(tmp_path: Path) -> None:
    values = (np.random.default_rng(1).standard_normal(10000) * 2.0**-24).astype(np.float32)
    write_step(tmp_path / "native", 0, {"grad": values})
    with Events(tmp_path / "logs") as events:
        events.add(0, "grad", plugin_histogram(values))
    import_tensorboard(tmp_path / "logs", tmp_path / "out")
    largest = 15 - int(np.floor(np.log2(np.abs(values).max())))
    for exponent in (largest, largest + 1):  # fp16's largest binade, and one above
        causes = []
        for name in ("native", "out.low.dlprof", "out.high.dlprof"):
            (tensor,) = truths(tmp_path / name, 2.0**exponent, "--format", "fp16")["fp16"].values()
            causes.append(tensor["overflow"] > 0)
        assert causes == [exponent > largest] * 3


def test_values_below_the_smallest_bucket_may_be_zero(tmp_path: Path) -> None:
    with Events(tmp_path / "logs") as events:
        events.add(0, "grad", torch_histogram(np.float32([0, 1e-13, -1e-13, 1])))
        events.add(1, "grad", torch_histogram(np.zeros(7, np.float32)))
    import_tensorboard(tmp_path / "logs", tmp_path / "out")
    options = ("--format", "fp16", "--policy", "static")
    counts = [
        [(step["underflow"], step["elements"]) for step in run["steps"]]
        for side in ("low", "high")
        for run in replayed(tmp_path / f"out.{side}.dlprof", *options)
    ]
    # The smallest value, -1e-13, is given in addition to the buckets.
    assert counts == [[(3, 4), (0, 7)], [(1, 4), (0, 7)]]


def test_nonfinite_values_make_the_step_not_finite(tmp_path: Path) -> None:
    for bad, key in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")):
        directory = tmp_path / str(bad)
        with Events(directory) as events:
            events.add(3, "grad", torch_histogram(np.float32([1, bad, 0.5, bad])))
        import_tensorboard(directory, directory / "out")
        (run,) = replayed(directory / "out.low.dlprof", "--format", "fp16", "--policy", "torch")
        assert run["tensors"][0][key] == 2
        assert run["steps"][0]["cause"] == "input"


@pytest.mark.parametrize("far", [[1e25], [-1e25, -2e30], [2e20] * 5])
def test_values_beyond_all_buckets_are_bracketed(tmp_path: Path, far: list[float]) -> None:
    values = np.float32([1.0, -2.0, 1e-30, *far])
    write_step(tmp_path / "native", 0, {"grad": values})
    with Events(tmp_path / "logs") as events:
        events.add(0, "grad", torch_histogram(values))
    import_tensorboard(tmp_path / "logs", tmp_path / "out")
    for scale in (1.0, 2.0**-60, 2.0**-100):
        check(tmp_path, scale, *ASKED)


@pytest.mark.parametrize("how", ["option", "tag"])
def test_a_loss_scale_is_divided_out(tmp_path: Path, how: str) -> None:
    logged(tmp_path, 5, "torch", scale=1024.0)
    given: dict[str, Any] = {"grad_scale": 1024.0}
    if how == "tag":
        with Events(tmp_path / "scalars") as events:
            for step in (0, 5, 17):
                events.add_scalar(step, "loss_scale", 1024.0)
        (tmp_path / "logs" / "z.tfevents").write_bytes(events.path.read_bytes())
        given = {"scale_tag": "loss_scale"}
    import_tensorboard(tmp_path / "logs", tmp_path / "out", **given)
    check(tmp_path, 64.0, "--format", "fp16")
    with pytest.raises(ValueError, match="no scalar at step 0"):
        import_tensorboard(tmp_path / "logs", tmp_path / "none", scale_tag="missing")


def test_the_last_histogram_of_a_step_counts_and_steps_are_sorted(tmp_path: Path) -> None:
    with Events(tmp_path / "logs") as events:
        for step, value in ((5, 1.0), (9, 2.0), (5, 4.0), (2, 8.0)):
            events.add(step, "grad", torch_histogram(np.float32([value])))
    imported = import_tensorboard(tmp_path / "logs", tmp_path / "out")
    assert (imported.steps, imported.first_step, imported.last_step) == (3, 2, 9)
    assert any("last is taken" in note for note in imported.notes)
    (run,) = replayed(tmp_path / "out.low.dlprof", "--format", "fp16", "--policy", "static")
    norms = [step["grad_norm_bracket"][1] for step in run["steps"]]
    assert norms == pytest.approx([8, 4, 2])


def test_tags_are_chosen_by_globs_and_steps_by_numbers(tmp_path: Path) -> None:
    with Events(tmp_path / "logs") as events:
        for step in range(5):
            for tag in ("model/fc.Grad", "weights", "odd \n<b>,\u00e9"):
                events.add(step, tag, torch_histogram(np.float32([1])))
    import_tensorboard(tmp_path / "logs", tmp_path / "a", first=1, last=3)
    (run,) = replayed(tmp_path / "a.low.dlprof", "--format", "fp16", "--policy", "static")
    assert [tensor["name"] for tensor in run["tensors"]] == ["model/fc.Grad"]
    assert [step["step"] for step in run["steps"]] == [1, 2, 3]
    import_tensorboard(tmp_path / "logs", tmp_path / "b", tensors="*", act_grad="w*")
    (run,) = replayed(tmp_path / "b.low.dlprof", "--format", "fp16", "--policy", "static")
    roles = {tensor["name"]: tensor["role"] for tensor in run["tensors"]}
    assert roles == {"model/fc.Grad": "grad", "weights": "act_grad", "odd \n<b>,\u00e9": "grad"}
    with pytest.raises(ValueError, match="choose with --tensors among"):
        import_tensorboard(tmp_path / "logs", tmp_path / "c", tensors="nothing")
    with pytest.raises(ValueError, match="no step between"):
        import_tensorboard(tmp_path / "logs", tmp_path / "c", first=9)


def test_several_runs_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with Events(tmp_path / "logs" / name) as events:
            events.add(0, "grad", torch_histogram(np.float32([1])))
    line = one_error_line(
        run_dlsim("import", "tensorboard", tmp_path / "logs", "-o", tmp_path / "out"), 3
    )
    assert "2 runs" in line
    assert import_tensorboard(tmp_path / "logs" / "a", tmp_path / "out").steps == 1


def _histogram(**fields: Any) -> Summary.Value:
    base = {"min": 1, "max": 2, "num": 2, "bucket_limit": [1, 3], "bucket": [1, 1]}
    return Summary.Value(histo={**base, **fields})


BAD = {
    "lengths": _histogram(bucket=[1]),
    "order": _histogram(bucket_limit=[3, 1]),
    "nan limit": _histogram(bucket_limit=[1, np.nan]),
    "negative": _histogram(bucket=[-1, 3]),
    "fraction": _histogram(bucket=[0.5, 1.5]),
    "infinite": _histogram(bucket=[1, np.inf], num=np.inf),
    "more": _histogram(num=1),
    "huge": _histogram(bucket=[0, 1e15], num=1e15),
    "contradiction": _histogram(min=5, max=6),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_histograms_are_one_line_and_leave_nothing(tmp_path: Path, name: str) -> None:
    with Events(tmp_path / "logs") as events:
        events.add(0, "grad", torch_histogram(np.float32([1])))
        events.add(1, "grad", BAD[name])
    with pytest.raises(ValueError, match="'grad' at step 1") as raised:
        import_tensorboard(tmp_path / "logs", tmp_path / "out")
    assert len(str(raised.value).splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["logs"]


def test_bad_tensors_are_one_line(tmp_path: Path) -> None:
    good = plugin_histogram(np.float32([1, 2, 3]))
    for change in ({"dtype": 1}, {"tensor_content": b"123"}, {"tensor_content": bytes(24)}):
        value = Summary.Value()
        value.CopyFrom(good)
        for key, content in change.items():
            setattr(value.tensor, key, content)
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        with Events(directory) as events:
            events.add(1, "grad", value)
        with pytest.raises(ValueError, match="'grad' at step 1") as raised:
            import_tensorboard(directory, directory / "out")
        assert len(str(raised.value).splitlines()) == 1


def test_a_file_that_is_still_written_is_read_so_far(tmp_path: Path) -> None:
    with Events(tmp_path / "logs") as events:
        for step in range(3):
            events.add(step, "grad", torch_histogram(np.float32([1])))
    whole = events.path.read_bytes()
    for cut in (1, 5, 60):
        events.path.write_bytes(whole[:-cut])
        imported = import_tensorboard(tmp_path / "logs", tmp_path / "out", force=True)
        assert imported.steps == 2
        assert any("ends within a record" in note for note in imported.notes)


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    with Events(tmp_path / "logs") as events:
        for step in range(3):
            events.add(step, "grad", torch_histogram(np.float32([1, 2])))
    whole = events.path.read_bytes()
    second = whole.rindex(b"grad")
    for place in (second + 20, second - 14, 2):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        events.path.write_bytes(bytes(damaged))
        line = one_error_line(
            run_dlsim("import", "tensorboard", tmp_path / "logs", "-o", tmp_path / "out"), 3
        )
        assert "damaged record" in line
    for blob in (b"", b"no events" * 10):
        events.path.write_bytes(blob)
        one_error_line(
            run_dlsim("import", "tensorboard", tmp_path / "logs", "-o", tmp_path / "out"), 3
        )
    assert [p.name for p in tmp_path.iterdir()] == ["logs"]


def test_missing_tensorboard_names_the_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tfevents").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dlsim-numerics\[import\]'"):
        import_tensorboard(tmp_path, tmp_path / "out")
