# SPDX-License-Identifier: Apache-2.0
"""Probes of trainings that are resumed, killed or disturbed."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from probed import Seen, check, train
from recording import small_model
from torch import nn

import dlsim


def test_a_resumed_training_goes_on_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.dlprobe"
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = Seen(model)
    with dlsim.ProbeRecorder(model, path, on_error="raise"):
        train(model, optimizer, seen, range(6))
    with pytest.raises(dlsim.UsageError, match="exists already"):
        dlsim.ProbeRecorder(model, path)
    del seen.gradients[4:]  # the checkpoint is that before step 4
    with dlsim.ProbeRecorder(model, path, first_step=4, existing="continue", on_error="raise"):
        train(model, optimizer, seen, range(4, 7))
    probe = dlsim.open_probe(path)
    check(probe, seen)
    assert [step.number for step in probe] == list(range(7))
    values = probe.values(4)
    assert values is not None and values.states["2.bias"].updates == 6
    other = nn.Linear(6, 8)
    optimizer = torch.optim.SGD(other.parameters(), lr=1)
    with dlsim.ProbeRecorder(other, path, existing="continue") as rec:
        train(other, optimizer, Seen(other), range(2))
    assert rec.report().errors == 2 and "other parameters" in rec.report().messages[0]
    assert len(dlsim.open_probe(path)) == 7
    with dlsim.ProbeRecorder(other, path, existing="replace", on_error="raise"):
        train(other, optimizer, Seen(other), range(2))
    assert len(dlsim.open_probe(path)) == 2


def test_a_killed_training_leaves_its_updates(tmp_path: Path) -> None:
    path = tmp_path / "a.dlprobe"
    code = f"""
        import torch, dlsim
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 512)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        with dlsim.ProbeRecorder(model, {str(path)!r}):
            for step in range(10**6):
                optimizer.zero_grad()
                model(torch.ones(1, 64)).sum().mul(step + 1).backward()
                optimizer.step()
                if step == 20:
                    print("go", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "go\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    probe = dlsim.open_probe(path)
    assert len(probe) >= 15
    for i, step in enumerate(probe):
        assert step.number == i and set(step.gradients["bias"]) == {i + 1.0}


def test_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.dlprobe"
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dlsim.ProbeRecorder(model, path, on_error="raise"):
        train(model, optimizer, Seen(model), range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    probe = dlsim.open_probe(path)
    assert len(probe) == 2 and probe.cut_bytes > 0
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(dlsim.InputError, match=r"^[^\n]*a.dlprobe: damaged: wrong checksum[^\n]*$"):
        list(dlsim.open_probe(path))
    path.write_bytes(b"notes")
    with pytest.raises(dlsim.InputError, match="is not a probe"):
        dlsim.open_probe(path)
    with dlsim.ProbeRecorder(model, path, existing="replace") as rec:
        train(model, optimizer, Seen(model), range(1))
    assert "not overwritten" in rec.report().messages[0] and path.read_bytes() == b"notes"


def test_a_full_disk_stops_no_training_and_values_come_anew(tmp_path: Path) -> None:
    model = small_model()
    seen = Seen(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe") as rec:
        train(model, optimizer, seen, range(2))
        assert rec.report().errors == 0
        file = rec._following._file
        real, file._file = file._file, None
        file._path = tmp_path / "a.dlprobe" / "no"
        train(model, optimizer, Seen(model), range(2))
        assert rec.report().errors > 0
        file._file = real
        train(model, optimizer, Seen(model), range(3))
    probe = dlsim.open_probe(tmp_path / "a.dlprobe")
    assert len(probe) >= 4 and any(probe.values(i) is not None for i in range(2, len(probe)))


def test_off_by_default_and_wrong_arguments(tmp_path: Path) -> None:
    model = small_model()
    for probe in (None, 0, False):
        with dlsim.Recorder(model, tmp_path / f"{probe}", probe=probe) as rec:
            train(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                Seen(model),
                range(1),
                lambda: rec.step(scale=1.0),
            )
        assert not list(tmp_path.rglob("*.dlprobe"))
    for probe in (-1, "all", 0.5):
        with pytest.raises(dlsim.UsageError, match="probe"):
            dlsim.Recorder(model, tmp_path / "b", probe=probe)
    with pytest.raises(dlsim.UsageError, match="elements"):
        dlsim.ProbeRecorder(model, tmp_path / "b.dlprobe", elements=0)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rec = dlsim.ProbeRecorder(model, tmp_path / "a.dlprobe", on_error="raise")
    train(model, optimizer, Seen(model), range(2))
    del rec  # without close
    gc.collect()
    train(model, optimizer, Seen(model), range(2))
    assert len(dlsim.open_probe(tmp_path / "a.dlprobe")) == 2
    assert "step" not in vars(optimizer)
    with dlsim.ProbeRecorder(model, tmp_path / "b.dlprobe", on_error="raise"):
        train(model, optimizer, Seen(model), range(1))
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                train(model, optimizer, Seen(model), range(1))
            os._exit(0)
        os.waitpid(pid, 0)
    train(model, optimizer, Seen(model), range(1))
    assert len(dlsim.open_probe(tmp_path / "b.dlprobe")) == 1
    assert "step" not in vars(optimizer)
