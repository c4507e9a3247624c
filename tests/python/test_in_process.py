# SPDX-License-Identifier: Apache-2.0
"""Commands run in the caller's process and leave it as it was."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dlsim

TRACE = Path(__file__).parents[1] / "data" / "traces" / "reg-diabetes-cut"

CALLS: list[Callable[[Path], Any]] = [
    lambda path: dlsim.replay(TRACE, csv=path / "a.csv"),
    lambda path: dlsim.sweep(TRACE, policies="torch"),
    lambda path: dlsim.tune(TRACE),
    lambda path: dlsim.diff(TRACE, TRACE),
    lambda path: dlsim.profile(TRACE, path / "a.dlprof"),
    lambda path: dlsim.summaries(TRACE),
    lambda path: dlsim.accumulate(TRACE, accumulators="fp16"),
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


def test_an_interrupt_ends_the_work() -> None:
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dlsim.scaler(policy="torch", steps=2_000_000_000)
    assert time.monotonic() - began < 30
    timer.join()


def test_threads_get_what_one_gets() -> None:
    expected = dlsim.replay(TRACE).data
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: dlsim.replay(TRACE).data, range(80)))
    assert all(one == expected for one in found)


def replayed(_: int) -> Any:
    return dlsim.replay(TRACE).data


def test_a_forked_child_gets_the_same() -> None:
    expected = dlsim.replay(TRACE).data
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(replayed, (0,)).get(60) == expected
