# SPDX-License-Identifier: Apache-2.0
"""Commands run in the caller's process and leave it as it was."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dlsim

TRACE = Path(__file__).parents[1] / "data" / "traces" / "reg-diabetes-cut"

CALLS: list[Callable[[Path], Any]] = [
    lambda path: dlsim.replay(TRACE, csv=path / "a.csv"),
    lambda path: dlsim.sweep(TRACE, policies="torch"),
    lambda path: dlsim.tune(TRACE),
    lambda path: dlsim.diff(TRACE, TRACE),
    lambda path: dlsim.profile(TRACE, path / "a.profile"),
    lambda path: dlsim.replay(TRACE, summaries=path / "a.json"),
    lambda path: dlsim.info(TRACE),
    lambda path: dlsim.formats(),
    lambda path: dlsim.scaler(policy="torch", steps=9),
    lambda path: dlsim.replay("/no/such/trace"),
    lambda path: dlsim.replay(TRACE, formats="fp61"),
    lambda path: dlsim.replay(TRACE, policies="torch", settings={"init_scale": -1}),
]


# The C library keeps signals 32 and 33 to itself, and handles them once there is a second thread.
OF_C_LIBRARY = 0b11 << 31


def handlers() -> list[int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    masks = [line.split()[1] for line in lines if line.startswith(("SigIgn", "SigCgt", "SigBlk"))]
    return [int(mask, 16) & ~OF_C_LIBRARY for mask in masks]


@pytest.mark.parametrize("call", CALLS)
def test_no_call_prints_or_handles_signals(
    call: Callable[[Path], Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = handlers()
    try:
        call(tmp_path)
    except dlsim.Error:
        pass
    assert capfd.readouterr() == ("", "")
    assert handlers() == before


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that takes minutes: one step file of 4 MB under 5000 names."""
    path = tmp_path_factory.mktemp("long")
    step = path / "step-00000000.safetensors"
    save_file({"w.grad": np.full(1 << 20, 0.1, np.float32)}, step)
    for number in range(1, 5000):
        os.link(step, path / f"step-{number:08d}.safetensors")
    return path


LONG: dict[str, Callable[[Path], Any]] = {
    "replay": dlsim.replay,
    "sweep": lambda trace: dlsim.sweep(trace, vary={"init_scale": "2^0..2^31"}),
    "tune": dlsim.tune,
    "scaler": lambda _: dlsim.scaler(policy="torch", steps=2_000_000_000),
}


@pytest.mark.parametrize("name", LONG)
def test_an_interrupt_ends_the_work(name: str, long_trace: Path) -> None:
    main = threading.main_thread().ident
    assert main is not None
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGINT)

    timer = threading.Timer(1, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        LONG[name](long_trace)
    assert time.monotonic() - sent[0] < 5  # a step takes some 10 ms
    timer.join()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_memory_and_descriptors_stay_the_same_over_200_calls() -> None:
    def call() -> None:
        assert dlsim.replay(TRACE)["runs"]

    for _ in range(50):  # until allocators have what they keep
        call()
    bytes_before, files_before = resident_bytes(), len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        call()
    assert len(os.listdir("/proc/self/fd")) == files_before
    assert resident_bytes() - bytes_before < 2 << 20  # 10 KB of each call, where a result has 400


NUMBERS = """
import locale, sys
import dlsim
locale.setlocale(locale.LC_ALL, sys.argv[1])
print(locale.localeconv()["decimal_point"], file=sys.stderr)
trace, csv = sys.argv[2:]
for result in (
    dlsim.replay(trace, policies="all", details=True, csv=csv, settings={"growth_factor": 2.5}),
    dlsim.sweep(trace, vary={"growth_factor": [1.5, "2.25"]}, policies="torch"),
    dlsim.tune(trace),
    dlsim.scaler("torch", 99, overflow_at=[3], settings={"backoff_factor": 0.25}),
):
    print(result, result.report, result.notes)
print(open(csv).read())
"""


def test_a_decimal_comma_changes_no_number(tmp_path: Path) -> None:
    localedef = shutil.which("localedef")
    if localedef is None:
        pytest.skip("needs localedef of glibc")
    source = 'LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n'
    (tmp_path / "source").write_text(source)
    # It complains of all else that a locale has.
    made = [localedef, "-c", "-i", str(tmp_path / "source"), str(tmp_path / "comma")]
    subprocess.run(made, check=False, capture_output=True)
    printed = {}
    for name, point in (("C", "."), ("comma", ",")):
        done = subprocess.run(
            [sys.executable, "-c", NUMBERS, name, str(TRACE), str(tmp_path / "rows.csv")],
            env={**os.environ, "LOCPATH": str(tmp_path), "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == f"{point}\n"
        printed[name] = done.stdout
    assert printed["comma"] == printed["C"]
    assert "0.25" in printed["C"]


def test_threads_get_what_one_gets() -> None:
    expected = dlsim.replay(TRACE)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: dlsim.replay(TRACE), range(80)))
    assert all(one == expected for one in found)


def replayed(_: int) -> Any:
    return dlsim.replay(TRACE)


def test_a_forked_child_gets_the_same() -> None:
    expected = dlsim.replay(TRACE)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(replayed, (0,)).get(60) == expected
