# SPDX-License-Identifier: Apache-2.0
"""Steps that a recorder chooses by what recording takes."""

import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import dlsim  # noqa: E402
from dlsim.recorder import _selection  # noqa: E402
from dlsim.recorder._selection import FIRST_STEPS, ForwardSteps, Pace, pace_of  # noqa: E402

NO_FORWARD = ForwardSteps(0)


def auto(forward: ForwardSteps = NO_FORWARD, *, fixed: bool = False) -> Pace:
    return pace_of("auto", forward, default=1, fixed=fixed)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has distances chosen after the first steps, whatever they took."""
    monkeypatch.setattr(_selection, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(_selection, "FIRST_OF_ALL", FIRST_STEPS)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(_selection.time, "perf_counter", lambda: self.now)

    def train(self, pace: Pace, steps: range, *, calls: float, thread: float) -> list[int]:
        """Makes steps of 0.1 s besides what the recorder takes; returns those recorded."""
        recorded = []
        for step in steps:
            self.now += 0.1
            with pace.call():
                if pace.includes(step):
                    recorded.append(step)
                    self.now += calls
                    pace.worked(step, thread)
                    pace.took(step, forward=False)
        return recorded


@pytest.mark.parametrize(("calls", "thread"), [(0.5, 0.0), (0.1, 0.4)])
def test_all_steps_are_recorded_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, calls: float, thread: float
) -> None:
    pace, clock = auto(), Clock(monkeypatch)
    recorded = clock.train(pace, range(2100), calls=calls, thread=thread)
    assert recorded[:121] == list(range(121))
    assert [step for step in recorded if step > 122] == list(range(500, 2100, 500))


def test_processes_record_a_thousand_steps_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, clock = auto(fixed=True), Clock(monkeypatch)
    recorded = clock.train(pace, range(1101), calls=9, thread=9)
    assert recorded == [*range(1000), 1000, 1050, 1100]


@pytest.mark.usefixtures("soon")
def test_a_step_that_costs_little_is_always_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = auto()
    steps = range(100)
    assert Clock(monkeypatch).train(pace, steps, calls=0.001, thread=0.0015) == list(steps)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("calls", "thread", "every"),
    [(0.002, 0.006, 5), (0.01, 0.01, 10), (0.03, 0.02, 50), (9, 9, 1000)],
)
def test_steps_are_as_far_apart_as_the_budget_asks(
    monkeypatch: pytest.MonkeyPatch, calls: float, thread: float, every: int
) -> None:
    pace, clock = auto(), Clock(monkeypatch)
    recorded = clock.train(pace, range(2100), calls=calls, thread=thread)
    expected = {*range(FIRST_STEPS), 16, 32, *range(0, 2100, every)}
    assert recorded == sorted(expected)


@pytest.mark.usefixtures("soon")
def test_another_distance_is_chosen_when_steps_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, clock = auto(), Clock(monkeypatch)
    clock.train(pace, range(200), calls=0.01, thread=0.01)
    assert pace.every == 10
    clock.train(pace, range(200, 1000), calls=0.01, thread=0.05)
    assert pace.every == 50
    clock.train(pace, range(1000, 4000), calls=0.001, thread=0.0)
    assert pace.every == 1


@pytest.mark.usefixtures("soon")
def test_waiting_for_the_thread_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, clock = auto(), Clock(monkeypatch)
    for step in range(FIRST_STEPS):
        clock.now += 0.1
        with pace.call():
            clock.now += 0.002
            pace.waited(0.002)
            pace.worked(step, 0.002)
            pace.took(step, forward=False)
    assert pace.every == 1  # 2 %, not 4


@pytest.mark.usefixtures("soon")
def test_forward_passes_are_weighed_by_how_often_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, clock = auto(ForwardSteps(None)), Clock(monkeypatch)
    for step in range(FIRST_STEPS):
        clock.now += 0.1
        forward = step in (0, 1, 2, 4, 8)
        with pace.call():
            clock.now += 0.4 if forward else 0.0
            pace.took(step, forward=forward)
    assert pace.every == 500  # 8 % of the time at each 50th step, 4 % at each 100th


def small_model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))


def train(path: Path, steps: int, **options: Any) -> dlsim.Recorder:
    model = small_model()
    with dlsim.Recorder(model, path, on_error="raise", **options) as rec:
        for _ in range(steps):
            model.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            rec.step(scale=1.0)
    return rec


def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_selection.Costs, "share", lambda _self, every, _forward: 1 / every)


@pytest.mark.usefixtures("soon")
def test_a_profile_says_which_steps_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    costly(monkeypatch)
    with caplog.at_level(logging.WARNING, "dlsim.recorder"):
        rec = train(tmp_path / "a.profile", 120)
    profile = dlsim.open_profile(tmp_path / "a.profile")
    assert list(profile.steps) == [*range(FIRST_STEPS), 16, 32, 50, 100]
    assert profile.description["every"] == "chosen for 0.03 of the time"
    (said,) = (one for one in caplog.messages if "multiples of 50" in one)
    assert "of step 16 and later" in said and "every=1 records all" in said
    assert rec.report().every == 50
    assert str(rec.report()).endswith("recording multiples of 50 now")
    report = " ".join(dlsim.replay(tmp_path / "a.profile", policies="torch").report.split())
    assert "note: 81 steps are missing (3 gaps)" in report
    assert "so they count too few clean steps and see no overflow in the gaps" in report


@pytest.mark.usefixtures("soon")
def test_all_steps_are_recorded_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    costly(monkeypatch)
    rec = train(tmp_path / "a.profile", 60, every=1)
    profile = dlsim.open_profile(tmp_path / "a.profile")
    assert list(profile.steps) == list(range(60)) and "every" not in profile.description
    assert rec.report().every is None
    assert train(tmp_path / "trace", 60).report().steps == 60
    assert train(tmp_path / "b.profile", 60, every=0.3).report().steps == 26
    assert train(tmp_path / "fewer", 60, every="auto").report().steps == 19


@pytest.mark.usefixtures("soon")
def test_processes_that_each_record_choose_the_same_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_selection.Costs, "share", lambda *_: 1 / 0)  # nothing is measured
    options: dict[str, Any] = {"distributed": ("separate", 1, 2)}
    train(tmp_path / "a.profile", 120, **options)
    profile = dlsim.open_profile(tmp_path / "a.rank-00001.profile")
    assert list(profile.steps) == [*range(FIRST_STEPS), 16, 32, 50, 100]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "often"}, "every: expected a number, a range or 'auto', got 'often'"),
        ({"every": 0}, "every: out of range"),
        (
            {"every": range(5, 4)},
            r"every: no steps, expected such as range\(.*\), got range\(5, 4\)",
        ),
        ({"every": 0.0}, "every: out of range, expected a share of the time between 0 and 1"),
        ({"every": 1.0}, "every: out of range"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(dlsim.UsageError, match=message):
        dlsim.Recorder(small_model(), tmp_path / "a.profile", **options)
