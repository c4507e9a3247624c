# SPDX-License-Identifier: Apache-2.0
"""dlsim.explain: logs of the command, TensorBoard's scalars, and W&B's exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dlsim

LOGS = Path(__file__).parents[1] / "data" / "logs"
STEPS = 60


def scales_of_torch() -> list[float]:
    """The scale that each step used: a run of torch's scaler that overflows now and then."""
    scaler = dlsim.LossScaler("torch", {"init_scale": 2.0**14, "growth_interval": 10})
    scales = []
    for step in range(STEPS):
        scales.append(float(scaler.scale))
        scaler.next(step in (0, 1, 2, 30))
    return scales


def check(result: dlsim.Result) -> None:
    """Expects what was run: the policy, its parameters and the skipped steps."""
    assert result.schema == "dlsim.explain/1"
    policies = {row["policy"]: row["settings"] for row in result.data["policies"]}
    assert {"init_scale=16384", "growth_interval=10"} <= set(policies["torch"])
    assert result.data["summary"]["steps"] == STEPS - 1  # the last one is not told
    assert result.data["summary"]["skipped_steps"] == 4


def write_csv(path: Path, header: str) -> Path:
    rows = [f"{step},{scale},{scale},{scale}" for step, scale in enumerate(scales_of_torch())]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    "step", ["Step", "trainer/global_step", "train/global_step", "_step", "global_step"]
)
def test_an_export_of_wandb(tmp_path: Path, step: str) -> None:
    name = "devout-sky-7 - train/loss_scale"
    header = f'"{step}","{name}","{name}__MIN","{name}__MAX"'
    check(dlsim.explain(write_csv(tmp_path / "export.csv", header)))


def test_an_export_of_several_runs_is_refused(tmp_path: Path) -> None:
    header = '"Step","a - loss_scale","b - loss_scale","c - loss_scale"'
    with pytest.raises(dlsim.InputError, match="the scales of several runs, expected a file"):
        dlsim.explain(write_csv(tmp_path / "export.csv", header))


def test_a_tag_needs_an_event_log() -> None:
    with pytest.raises(dlsim.UsageError, match="tag: expected an event log of TensorBoard"):
        dlsim.explain(LOGS / "scale.csv", tag="loss_scale")


class TestTensorBoard:
    """Event files that the real SummaryWriter wrote."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Callable[..., Path]:
        """Returns a function that writes the run under tags and returns its directory."""
        pytest.importorskip("tensorboard")
        writers = pytest.importorskip("torch.utils.tensorboard")

        def write(*tags: str, name: str = "run", stride: int = 1, new_style: bool = False) -> Path:
            with writers.SummaryWriter(str(tmp_path / name)) as writer:
                for step, scale in enumerate(scales_of_torch()):
                    for tag in tags:
                        writer.add_scalar(tag, scale, step * stride, new_style=new_style)
            return tmp_path / name

        return write

    @pytest.mark.parametrize("new_style", [False, True])
    def test_the_scale_is_found_by_its_name(
        self, log: Callable[..., Path], new_style: bool
    ) -> None:
        directory = log("train/grad_scale", "train/loss", new_style=new_style)
        check(dlsim.explain(directory))
        check(dlsim.explain(next(directory.iterdir())))
        check(dlsim.explain(directory.parent))

    def test_deepspeed_counts_samples(self, log: Callable[..., Path]) -> None:
        check(dlsim.explain(log("Train/Samples/loss_scale", stride=32)))

    def test_another_name_is_given(self, log: Callable[..., Path]) -> None:
        directory = log("amp/s", "train/loss")
        check(dlsim.explain(directory, tag="amp/s"))
        with pytest.raises(dlsim.InputError, match=r"no tag of loss scales, expected tag= one of"):
            dlsim.explain(directory)
        with pytest.raises(dlsim.UsageError, match=r"^tag: expected one of 'amp/s', 'train/loss'"):
            dlsim.explain(directory, tag="b")

    def test_what_is_open_is_asked(self, log: Callable[..., Path]) -> None:
        directory = log("a/loss_scale", "b/loss_scale")
        with pytest.raises(dlsim.UsageError, match="several tags of loss scales"):
            dlsim.explain(directory)
        log("loss_scale", name="other")
        with pytest.raises(dlsim.UsageError, match="several runs, expected one of"):
            dlsim.explain(directory.parent)

    def test_the_command_names_this_function(self, log: Callable[..., Path]) -> None:
        from dlsim.runs import _bridge

        path = next(log("loss_scale").iterdir())
        call = _bridge.run(["explain"], [str(path)])
        assert call.code == 3
        assert "a log of TensorBoard, expected dlsim.explain()" in call.message


def test_the_diagnosis_is_a_class(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    overflow = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    log.write_text(f"step 0: loss 2.3\n{overflow}step 1: loss nan\n")
    diagnosis = dlsim.explain(log).diagnosis
    assert diagnosis is not None
    assert diagnosis.side == "forward"
    assert str(diagnosis).startswith("forward: the loss is nan at the first skipped step (line 3)")
    silent = dlsim.explain(LOGS / "apex-warm-up.log").diagnosis
    assert silent == dlsim.results.Diagnosis(
        "unknown", "the log prints no loss that dlsim recognizes"
    )


def test_a_diagnosis_of_another_form_is_refused() -> None:
    with pytest.raises(dlsim.InputError, match="expected forward, backward, unknown, got 'left'"):
        _ = dlsim.Result((), {"schema": "dlsim.explain/1", "diagnosis": {"side": "left"}}).diagnosis
    assert dlsim.Result((), {"schema": "dlsim.diff/1"}).diagnosis is None
