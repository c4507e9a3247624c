# SPDX-License-Identifier: Apache-2.0
"""The package's `dlsim`: the engine's commands as a process, and the commands written in Python."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from running import DLSIM

import dlsim
from dlsim import _command

TRACE = str(Path(__file__).parents[1] / "data" / "traces" / "cnn-digits")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*DLSIM, *arguments]
    # As in a pipe: readline sets COLUMNS, which pytest-xdist's workers inherit.
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=plain)


def test_the_version_is_that_of_the_module() -> None:
    assert run("--version").stdout.split()[:2] == ["dlsim", dlsim.__version__]


def test_it_ends_quietly_when_its_reader_does() -> None:
    command = [*DLSIM, "scaler", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE])
def test_a_signal_ends_it_without_a_trace(tmp_path: Path, number: signal.Signals) -> None:
    # Nobody reads the pipe into which it writes its rows.
    reader, writer = os.pipe()
    capacity = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    command = [*DLSIM, "replay", TRACE, "--csv", "-", "--json", str(tmp_path / "result.json")]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as child:
        os.close(writer)
        written = array("i", [0])
        while written[0] < capacity:
            assert child.poll() is None
            time.sleep(0.01)
            fcntl.ioctl(reader, termios.FIONREAD, written)
        assert list(tmp_path.iterdir())
        if number == signal.SIGPIPE:
            os.close(reader)
        else:
            child.send_signal(number)
        assert child.stderr is not None
        assert child.stderr.read() == b""
    if number != signal.SIGPIPE:
        os.close(reader)
    assert child.returncode == -number
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])
def test_a_signal_ends_a_command_in_python_without_a_trace(
    tmp_path: Path, number: signal.Signals
) -> None:
    dlsim.replay(TRACE).save(tmp_path / "result.json")
    code = (
        "import os, sys; from dlsim._command import main\n"
        "def replace(temporary, final):\n"
        "    print(os.path.getsize(temporary), file=sys.stderr, flush=True)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "os.replace = replace; main()"
    )
    command = [sys.executable, "-c", code, "report", "result.json", "--no-trace", "-o", "o.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert int(done.stderr) > 0  # it was written, and nothing else was said
    assert done.returncode == -number
    assert os.listdir(tmp_path) == ["result.json"]


@pytest.mark.parametrize("chosen", ["", "KMP_BLOCKTIME", "GOMP_SPINCOUNT"])
def test_threads_sleep_while_they_wait_unless_the_user_says_how(chosen: str) -> None:
    code = (
        "import os, sys; from dlsim import _command; assert 'dlsim._core' not in sys.modules; "
        "_command.main(['formats', 'fp16']); print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**environment, **({chosen: "7"} if chosen else {})},
    )
    assert done.stdout.splitlines()[-1] == ("None" if chosen else "passive")


def run_python_command(monkeypatch: pytest.MonkeyPatch, outcome: BaseException | int) -> int:
    """Runs `dlsim report` whose main ends so."""

    def main(arguments: Sequence[str]) -> int:
        assert arguments == ["a.json", "-o", "b.html"]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    module = ModuleType("fake_report")
    vars(module)["main"] = main
    monkeypatch.setitem(sys.modules, "fake_report", module)
    monkeypatch.setitem(_command._PYTHON_COMMANDS, "report", "fake_report")
    return _command.main(["report", "a.json", "-o", "b.html"])


@pytest.mark.parametrize(
    ("outcome", "code", "printed"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (dlsim.UsageError("--top: negative"), 2, "dlsim report: --top: negative\n"),
        (dlsim.InputError("x: not JSON"), 3, "dlsim report: x: not JSON\n"),
        (dlsim.Error("odd"), 70, "dlsim report: odd\n"),
        (ModuleNotFoundError("h5py: pip install h5py"), 2, "dlsim report: h5py: pip install"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("oops"), 70, "dlsim report: internal error: oops\n"),
    ],
)
def test_commands_in_python_end_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: BaseException | int,
    code: int,
    printed: str,
) -> None:
    assert run_python_command(monkeypatch, outcome) == code
    assert printed in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_one_line(tmp_path: Path, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*DLSIM, "report", "--help"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(dlsim.__file__).parents[1]),
                "PYTHONUNBUFFERED": unbuffered,
            },
        )
    expected = "standard output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (3, f"dlsim report: {expected}")


def test_commands_in_python_exist() -> None:
    for name in _command._PYTHON_COMMANDS:
        done = run(name, "--help")
        assert done.returncode == 0, done.stderr
        assert f"dlsim {name}" in done.stdout
        assert run("help", name).stdout == done.stdout


def test_completion_knows_the_options_of_commands_in_python() -> None:
    script = run("completion", "bash").stdout
    for name in _command._PYTHON_COMMANDS:
        words = re.search(rf"^ +(?:\S+\|)*'{name}'(?:\|\S+)*\) words='(--.*)' ;;$", script, re.M)
        assert words is not None, name
        kinds: list[list[str]] = [[]]
        if name in ("bench", "import"):
            offered = re.search(rf"'{name}'\\ 2\) words='(.*)' ;;$", script, re.M)
            assert offered is not None
            kinds = [[kind] for kind in offered[1].split()]
        helps = "".join(run(name, *kind, "--help").stdout for kind in kinds)
        listed = re.findall(r"^ +(?:-\w.*, )?(--[a-z0-9-]+)", helps, re.MULTILINE)
        assert set(words[1].split()) == set(listed)


@pytest.fixture(autouse=True)
def signals_as_before() -> object:
    before = signal.getsignal(signal.SIGPIPE)
    yield
    signal.signal(signal.SIGPIPE, before)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "a.json", "--outp", "b.html"),
        ("import", "pt", "a.pt", "--outp", "b"),
    ],
)
def test_options_are_not_abbreviated(arguments: Sequence[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(rf"dlsim {arguments[0]}: .*(--outp|-o).* \(see dlsim .*--help\)", done.stderr)
