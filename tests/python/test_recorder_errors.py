# SPDX-License-Identifier: Apache-2.0
"""A recorder never stops the training, and leaves what can be read."""

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recording import info, load, small_model, steps_in, train
from torch import nn

import dlsim


def test_a_missing_scale_is_never_guessed(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path) as rec:
        model(torch.randn(4, 6)).sum().backward()
        with pytest.raises(TypeError, match=r"scale: missing, expected .* scale=1.0 if"):
            rec.step(loss=1.0)
        with pytest.raises(dlsim.UsageError, match="micro_step: not prepared"):
            rec.micro_step(scale=1.0)


def test_a_scaler_is_asked(tmp_path: Path) -> None:
    class OfTorch:
        def __init__(self) -> None:
            self._per_optimizer_states = {}

        def get_scale(self) -> float:
            return 256.0

    from enum import Enum

    stage = Enum("OptState", ["READY", "UNSCALED"])
    model, scaler = small_model(), OfTorch()
    with dlsim.Recorder(model, tmp_path / "torch", scaler=scaler) as rec:
        for scale in (None, 2.0):
            model.zero_grad()
            model(torch.randn(4, 6)).sum().backward()
            rec.step(scale=scale)
        scaler._per_optimizer_states[1] = {"stage": stage.UNSCALED}
        rec.step()
    assert [load(tmp_path / "torch", i)[1]["grad_scale"] for i in (0, 1)] == ["256.0", "2.0"]
    assert rec.errors == 1 and "unscale_() or step()" in rec.report().messages[0]
    own = dlsim.LossScaler("torch", {"init_scale": "32"})
    with dlsim.Recorder(model, tmp_path / "own", scaler=own) as rec:
        rec.step()
    assert load(tmp_path / "own", 0)[1]["grad_scale"] == "32.0"


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0, -1.0, 1e39, 1e-40, "big"])
@pytest.mark.parametrize("output", ["run", "run.profile"])
def test_a_bad_scale_costs_its_step_only(tmp_path: Path, scale, output) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / output) as rec:
        train(model, rec, 1)
        rec.step(scale=scale)
        rec.step(scale=4.0)
    assert rec.errors == 1 and rec.report().steps == 2
    assert "steps: 2 (0 to 2)" in info(tmp_path / output)


def test_errors_are_logged_once_and_summed_up_at_close(tmp_path: Path, caplog) -> None:
    model = small_model()
    with caplog.at_level(logging.WARNING):
        with dlsim.Recorder(model, tmp_path) as rec:
            for _ in range(30):
                rec.step(scale=1.0)
        assert rec.errors == 30 and len(rec.report().messages) == 20
    assert len(caplog.records) == 3  # the first error, the sum, the tensors without gradient
    assert "no gradients, expected a call after backward" in caplog.messages[0]
    assert "30 errors" in caplog.messages[1]


@pytest.mark.parametrize("name", ["run", "run.profile"])
def test_a_failing_call_keeps_the_step_before(tmp_path: Path, name: str) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path / name) as rec:
        train(model, rec)
        rec.step(scale=1.0, step=0)
    assert rec.report().messages == ["step 0: steps must ascend, expected more than 0"]
    assert "steps: 1 (0 to 0)" in info(tmp_path / name)


def test_errors_can_be_raised_instead(tmp_path: Path) -> None:
    with dlsim.Recorder(small_model(), tmp_path, on_error="raise") as rec:
        with pytest.raises(dlsim.Error, match="no gradients"):
            rec.step(scale=1.0)


@pytest.mark.parametrize("output", ["run", "run.profile"])
def test_an_exception_of_the_training_passes_and_leaves_a_readable_result(tmp_path, output) -> None:
    model = small_model()
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error):
            with dlsim.Recorder(model, tmp_path / error.__name__ / output) as rec:
                train(model, rec, 2)
                raise error
        assert "steps: 2 (0 to 1)" in info(tmp_path / error.__name__ / output)
        rec.step(scale=1.0)  # after close: nothing
        rec.close()


@pytest.mark.parametrize("output", ["run", "run.profile"])
def test_a_path_that_cannot_be_written_costs_no_training(tmp_path: Path, output) -> None:
    (tmp_path / "file").write_text("")
    model = small_model()
    with dlsim.Recorder(model, tmp_path / "file" / output) as rec:
        train(model, rec, 2)
        assert rec.errors == 3 and rec.report().steps == 0
        (tmp_path / "file").unlink()
        train(model, rec, 1)
    assert rec.errors == 3 and "steps: 1 (2 to 2)" in info(tmp_path / "file" / output)


@pytest.mark.parametrize("output", ["run", "run.profile"])
def test_a_full_disk_costs_steps_only(tmp_path: Path, output) -> None:
    script = (
        "import resource, signal, sys, torch, dlsim\n"
        "model = torch.nn.Linear(300, 300)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with dlsim.Recorder(model, sys.argv[1], every=1) as rec:\n"
        "    for limit in (resource.RLIM_INFINITY, 500, resource.RLIM_INFINITY):\n"
        "        rec.report()  # waits for the steps before\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "        for _ in range(20):\n"
        "            model.zero_grad()\n"
        "            model(torch.randn(4, 300)).square().sum().backward()\n"
        "            rec.step(scale=1.0)\n"
        "print(rec.errors, rec.report().steps)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / output],
        capture_output=True,
        text=True,
        check=True,
    )
    errors, steps = map(int, done.stdout.split())
    assert errors > 0 and errors + steps == 60 and steps >= 40
    assert f"steps: {steps} (0 to 59)" in info(tmp_path / output)
    assert done.stderr.count("cannot be written") == 1


def killed_training(tmp_path: Path, output: str) -> None:
    script = (
        "import sys, time, torch, dlsim\n"
        "model = torch.nn.Linear(4, 4)\n"
        "rec = dlsim.Recorder(model, sys.argv[1])\n"
        "for step in range(5):\n"
        "    model.zero_grad()\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    rec.step(scale=1.0)\n"
        "rec.report()\n"  # waits for what is being written
        "print('recorded', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / output], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "recorded\n"
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_training_leaves_a_trace(tmp_path: Path) -> None:
    killed_training(tmp_path, "run")
    assert "steps: 5 (0 to 4)" in info(tmp_path / "run")
    model = nn.Linear(4, 4)
    description = (tmp_path / "run" / "trace.json").read_text()
    with pytest.raises(dlsim.UsageError, match="holds a trace already"):
        dlsim.Recorder(model, tmp_path / "run")
    assert (tmp_path / "run" / "trace.json").read_text() == description
    with dlsim.Recorder(model, tmp_path / "run", existing="continue") as rec:
        model(torch.ones(2, 4)).sum().backward()
        rec.step(scale=1.0, step=3)
    assert steps_in(tmp_path / "run") == [0, 1, 2, 3]
    with dlsim.Recorder(model, tmp_path / "run", existing="replace") as rec:
        rec.step(scale=1.0)
    assert steps_in(tmp_path / "run") == [0]


def test_a_killed_training_leaves_a_profile_to_go_on_with(tmp_path: Path) -> None:
    killed_training(tmp_path, "run.profile")
    model = nn.Linear(4, 4)
    with pytest.raises(dlsim.UsageError, match=r"run\.profile: exists already"):
        dlsim.Recorder(model, tmp_path / "run.profile")
    with dlsim.Recorder(model, tmp_path / "run.profile", existing="continue") as rec:
        model(torch.ones(2, 4)).sum().backward()
        rec.step(scale=1.0, step=3)
    assert "steps: 4 (0 to 3)" in info(tmp_path / "run.profile")
    with dlsim.Recorder(model, tmp_path / "run.profile", existing="continue"):
        pass  # completes what is there
    assert "steps: 4 (0 to 3)" in info(tmp_path / "run.profile")


def test_a_recorder_that_nobody_closes_is_closed_at_exit(tmp_path: Path) -> None:
    script = (
        "import sys, torch, dlsim\n"
        "model = torch.nn.Linear(4, 4)\n"
        "rec = dlsim.Recorder(model, sys.argv[1])\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "rec.step(scale=1.0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run.profile"],
        capture_output=True,
        text=True,
        check=True,
    )
    path = tmp_path / "run.profile"
    assert done.stderr == f"{path}: 1 step recorded. Next: dlsim replay {path}\n"
    assert "steps: 1 (0 to 0)" in info(tmp_path / "run.profile")


@pytest.mark.parametrize("output", ["run", "run.profile"])
@pytest.mark.parametrize("again", [False, True])
def test_a_recorder_that_is_collected_unclosed_is_completed(tmp_path: Path, output, again) -> None:
    script = (
        "import gc, logging, sys, torch, dlsim\n"
        "logging.getLogger('dlsim.recorder').setLevel('ERROR')\n"
        "model = torch.nn.Linear(4, 4)\n"
        "def train(path):\n"
        "    rec = dlsim.Recorder(model, path)\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    rec.step(scale=1.0)\n"
        "train(sys.argv[1])\n"
        "gc.collect()\n"
        "if len(sys.argv) > 2:\n"
        "    dlsim.Recorder(model, sys.argv[2]).close()\n"
        "    dlsim.replay(sys.argv[1])\n"
    )
    arguments = [tmp_path / output, *([tmp_path / "next"] if again else [])]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "steps: 1 (0 to 0)" in info(tmp_path / output)
    assert not list((tmp_path / output).glob(".*"))


@pytest.mark.parametrize("existing", ["refuse", "replace", "continue"])
def test_a_trace_has_one_recorder_at_a_time(tmp_path: Path, existing) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path) as rec:
        with pytest.raises(dlsim.UsageError, match="another recorder is writing there"):
            dlsim.Recorder(model, tmp_path, existing=existing)
        train(model, rec, 2)
    assert rec.errors == 0 and steps_in(tmp_path) == [0, 1]
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    with dlsim.Recorder(model, tmp_path, existing="replace") as rec:
        train(model, rec, 1)
    assert rec.errors == 0 and steps_in(tmp_path) == [0]


def test_another_process_cannot_record_into_the_same_trace(tmp_path: Path) -> None:
    script = (
        "import sys, torch, dlsim\n"
        "try:\n"
        "    dlsim.Recorder(torch.nn.Linear(2, 2), sys.argv[1], existing='continue')\n"
        "except dlsim.UsageError as error:\n"
        "    print(error)\n"
    )
    with dlsim.Recorder(small_model(), tmp_path / "run"):
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "run"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.count("\n") == 1 and "another recorder is writing there" in done.stdout


def test_ranks_record_side_by_side_into_one_trace(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    model(torch.ones(2, 4)).sum().backward()
    several = [
        dlsim.Recorder(model, tmp_path, distributed=("separate", rank, 2), activations=None)
        for rank in (0, 1)
    ]
    for rec in several:
        rec.step(scale=1.0)
    for rec in several:
        rec.close()
    assert [rec.errors for rec in several] == [0, 0]
    assert "mean of 2 data-parallel ranks" in info(tmp_path)


def test_a_refused_recorder_leaves_the_directory_free(tmp_path: Path) -> None:
    model = small_model()
    for existing in ("refuse", "replace"):
        with dlsim.Recorder(model, tmp_path, existing=existing) as rec:
            train(model, rec, 1)
        with pytest.raises(dlsim.UsageError, match="holds a trace already"):
            dlsim.Recorder(model, tmp_path)
    assert list(tmp_path.glob(".*")) == []


def test_a_gradient_changed_in_place_after_it_was_seen_is_left_out(tmp_path: Path) -> None:
    model = small_model()
    with dlsim.Recorder(model, tmp_path, micro_steps=True) as rec:
        held = []
        model[0].weight.register_hook(held.append)
        model(torch.randn(4, 6)).sum().backward()
        held[0].mul_(2)
        rec.micro_step(scale=1.0)
        rec.step()
    assert "0.weight.grad" not in load(tmp_path, 0, ".micro-00")[0]
    assert "was changed in place" in rec.report().messages[0]


def test_memory_does_not_grow_with_steps(tmp_path: Path) -> None:
    model = small_model()
    import gc

    counts = []
    with dlsim.Recorder(model, tmp_path / "run.profile", activations="*") as rec:
        for _ in range(3):
            train(model, rec, 5)
            rec.report()  # waits for the thread, which holds tensors of a step under way
            gc.collect()
            counts.append(sum(type(item) is torch.Tensor for item in gc.get_objects()))
    assert counts[1] == counts[2] and rec.errors == 0


@pytest.mark.parametrize("existing", ["refuse", "replace", "continue"])
def test_a_profile_without_steps_leaves_nothing(tmp_path: Path, existing) -> None:
    for _ in range(2):
        with dlsim.Recorder(small_model(), tmp_path / "run.profile", existing=existing):
            pass
        assert list(tmp_path.iterdir()) == []


def test_files_with_and_without_ranks_are_never_mixed(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    model(torch.ones(2, 4)).sum().backward()
    of_rank_0, of_rank_1 = ({"distributed": ("separate", rank, 2)} for rank in (0, 1))
    with dlsim.Recorder(model, tmp_path) as rec:
        rec.step(scale=1.0)
    for existing in ("refuse", "continue"):
        with pytest.raises(dlsim.UsageError, match=r"holds a trace already, .* existing='replace'"):
            dlsim.Recorder(model, tmp_path, existing=existing, **of_rank_1)
    for options in (of_rank_0, of_rank_1):
        with dlsim.Recorder(model, tmp_path, existing="replace", **options) as rec:
            rec.step(scale=1.0)
    assert "mean of 2 data-parallel ranks" in info(tmp_path)
    with dlsim.Recorder(model, tmp_path, existing="replace") as rec:
        rec.step(scale=1.0)
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-00000000.safetensors"]


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_ranks_are_distinguished_before_there_is_a_process_group(
    tmp_path: Path, monkeypatch, name, of
) -> None:
    model = small_model()
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv(of, "2")
    with pytest.raises(dlsim.UsageError, match=r"expected the recorder after the model is wrapped"):
        dlsim.Recorder(model, tmp_path / "run")
    with dlsim.Recorder(model, tmp_path / "run", distributed="separate") as rec:
        train(model, rec)
    assert load(tmp_path / "run", 0, ".rank-00001")[1]["ranks"] == "2"
    with dlsim.Recorder(model, tmp_path / "reduced", distributed="reduced") as rec:
        train(model, rec)
    assert not (tmp_path / "reduced").exists()  # rank 0 writes
    monkeypatch.setenv(of, "1")
    monkeypatch.setenv(name, "0")
    with dlsim.Recorder(model, tmp_path / "one") as rec:
        train(model, rec)
    assert steps_in(tmp_path / "one") == [0]


def test_modules_that_never_run_are_no_warning(tmp_path: Path, caplog) -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Dropout()})
    with caplog.at_level(logging.DEBUG), dlsim.Recorder(model, tmp_path) as rec:
        model["used"](torch.ones(1, 2)).sum().backward()
        rec.step(scale=1.0)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "left out: idle.act_grad" in caplog.text


def test_a_profile_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    model, path = small_model(), tmp_path / "run.profile"
    with dlsim.Recorder(model, path) as rec:
        train(model, rec)
        steps = rec.report().steps
        for read in (dlsim.replay, dlsim.info):
            read(path)
        dlsim.sweep(path, policies="torch")
        assert len(dlsim.open_profile(path)) == steps
