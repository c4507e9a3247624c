# SPDX-License-Identifier: Apache-2.0
"""What a recorder tells its user: what a trace takes, and how to go on."""

import logging
from pathlib import Path

import pytest
from recording import small_model, train

import dlsim


def said(capsys: pytest.CaptureFixture) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_last_line_says_how_to_go_on(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a run.profile"
    model = small_model()
    with dlsim.Recorder(model, path) as rec:
        train(model, rec, 3)
        rec.step(scale=float("nan"))
    rec.close()
    last = f"{path}: 3 steps recorded, 1 refused. Next: dlsim replay '{path}'"
    assert said(capsys) == [last]


def test_a_trace_says_once_what_it_takes(tmp_path: Path, capsys) -> None:
    model, path = small_model(), tmp_path / "run"
    with dlsim.Recorder(model, path) as rec:
        train(model, rec, 2)
    size, last = said(capsys)
    assert size.startswith(f"{path}: a trace, 0.6 KiB for each step, without the forward pass")
    assert size.endswith(f"name it {path}.profile")
    assert last == f"{path}: 2 steps recorded. Next: dlsim replay {path}"


def test_only_a_dry_run_and_those_who_want_no_remarks_get_none(tmp_path: Path, capsys) -> None:
    logger, model = logging.getLogger("dlsim.recorder"), small_model()
    with dlsim.Recorder(model, None) as rec:
        train(model, rec, 1)
    logger.setLevel(logging.WARNING)
    try:
        with dlsim.Recorder(model, tmp_path / "run") as rec:
            train(model, rec, 1)
    finally:
        logger.setLevel(logging.NOTSET)
    assert said(capsys) == []


def test_a_recorder_without_steps_warns(tmp_path: Path, caplog, capsys) -> None:
    model = small_model()
    dlsim.Recorder(model, tmp_path / "never").close()
    with dlsim.Recorder(model, tmp_path / "later", every=range(5, 10)) as rec:
        train(model, rec, 1)
    never, later = caplog.messages
    assert never.endswith("never: nothing was recorded: Recorder.step was never called, expected "
                          "it after each backward pass")  # fmt: skip
    assert later.endswith("later: nothing was recorded: no step was among those to be recorded")
    assert said(capsys) == []


@pytest.mark.parametrize("existing", ["refuse", "replace", "continue"])
def test_a_profile_has_one_recorder_at_a_time(tmp_path: Path, existing) -> None:
    model, path = small_model(), tmp_path / "run.profile"
    with dlsim.Recorder(model, path) as rec:
        with pytest.raises(dlsim.UsageError, match="another recorder of this process is writing"):
            dlsim.Recorder(model, path, existing=existing)
        train(model, rec, 1)
    with dlsim.Recorder(model, path, existing="replace") as rec:
        train(model, rec, 1)
    assert rec.errors == 0 and rec.report().steps == 1
