# SPDX-License-Identifier: Apache-2.0
"""`dlsim bench`: what it finds in made-up measurements, and what users see."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dlsim import _bench, _command
from dlsim._errors import InputError

FAKE = Path(__file__).parent / "fake_bench.py"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command; returns its exit code, standard output and error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = _command._run_handled("bench", [str(word) for word in arguments])
        return (code, *capsys.readouterr())

    return run


def noisy(mean: float, mixed: random.Random) -> list[float]:
    """Returns times of 11 processes on a shared machine: CPU times of two busy cores."""
    run = 0.004 * mixed.gauss(0, 1)
    times = []
    for i in range(11):
        log_time = run + 0.004 * i / 11 + 0.005 * mixed.gauss(0, 1)
        if mixed.random() < 0.1:  # something else disturbs a repetition
            log_time += mixed.expovariate(1 / 0.03)
        times.append(mean * math.exp(log_time))
    return times


def verdicts(factors: Sequence[float], mixed: random.Random) -> list[str]:
    """Returns the verdict of each benchmark, which became slower by its factor."""
    pytest.importorskip("scipy")
    old = {f"k{i}": noisy(100, mixed) for i in range(len(factors))}
    new = {f"k{i}": noisy(100 * factor, mixed) for i, factor in enumerate(factors)}
    found = {change.name: change.verdict(0.05) for change in _bench.compare(old, new)}
    return [found[f"k{i}"] for i in range(len(factors))]


def test_a_slowdown_is_found_and_noise_is_not() -> None:
    mixed = random.Random(2026)
    for _ in range(10):
        found = verdicts([1.15, 1 / 1.15, *[1] * 18], mixed)
        assert found[:2] == ["slower", "faster"]
        assert set(found[2:]) == {""}


def test_a_change_below_the_threshold_is_none_though_significant() -> None:
    pytest.importorskip("scipy")
    steady = [100 + 0.01 * i for i in range(11)]
    (change,) = _bench.compare({"k": steady}, {"k": [1.04 * time for time in steady]})
    assert change.p < 1e-5
    assert change.verdict(0.05) == ""
    assert change.verdict(0.03) == "slower"


def test_a_change_that_may_be_noise_is_unclear() -> None:
    pytest.importorskip("scipy")
    old = [100 + 10 * (i % 5) + 0.01 * i for i in range(11)]
    (change,) = _bench.compare({"k": old}, {"k": [1.06 * time for time in old]})
    assert change.verdict(0.05) == "unclear"


def test_p_values_are_exact() -> None:
    pytest.importorskip("scipy")
    low, high = list(range(11)), list(range(20, 31))
    assert _bench.p_value(low, high) == pytest.approx(2 / math.comb(22, 11), rel=1e-12)
    assert _bench.p_value([5] * 11, [5] * 11) == 1
    assert 0.9 < _bench.p_value([1, 2, 2, 3] * 3, [2, 1, 3, 2] * 3) <= 1


def test_holms_correction() -> None:
    assert _bench.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert _bench.holm([0.9, 0.8]) == [1, 1]


def test_too_few_repetitions_for_any_verdict_are_refused() -> None:
    times = {f"k{i}": [1.0] * 8 for i in range(100)}
    with pytest.raises(InputError, match="expected 9 or more to compare 100 benchmarks, got 8"):
        _bench.compare(times, times)


def document(times: Sequence[float], name: str = "Encode", **context: str) -> dict[str, Any]:
    entries = [{"name": name, "cpu_time": time, "real_time": 100, "time_unit": "ns"}
               for time in times]  # fmt: skip
    return {"context": context, "benchmarks": entries}


def write(name: str, content: object) -> str:
    Path(name).write_text(json.dumps(content))
    return name


def test_compare_prints_a_table_and_fails_if_something_is_slower(bench: Any) -> None:
    pytest.importorskip("scipy")
    old = document([1000 + i for i in range(11)])
    aggregate = {"name": "Encode_mean", "run_type": "aggregate", "cpu_time": 9}
    old["benchmarks"] += [aggregate, *document([5] * 11, "Gone")["benchmarks"]]
    new = write("new.json", document([1200 + i for i in range(11)]))
    code, out, err = bench("compare", write("old.json", old), new)
    assert (code, err) == (1, "")
    row = next(line.split() for line in out.splitlines() if line.startswith("Encode"))
    assert row == ["Encode", "1.005", "us", "1.205", "us", "+19.9", "%", "2.8e-06", "slower"]
    assert "Only in one of them: Gone\n" in out
    assert "1 benchmark: 1 slower, 0 faster, 0 unclear (by more than 5 %)\n" in out
    assert bench("compare", "old.json", new, "--threshold", "20%")[0] == 0
    assert bench("compare", new, "old.json")[0] == 0


def test_time_is_that_of_the_clock_where_the_name_says_so() -> None:
    for name, time in (("a/threads:1", 7), ("a/real_time/threads:2", 100), ("g/manual_time", 100)):
        assert _bench.times_of("f", document([7], name)) == {name: [time]}


def test_run_gives_each_repetition_a_process(bench: Any) -> None:
    out = ("--out", "r.json", "--repetitions", 3, "--filter", "code")
    assert bench("run", "--program", FAKE, *out, "--", "--threads=2") == (0, "", "")
    result = json.loads(Path("r.json").read_text())
    assert result["context"] == {"cpu_model": "Fake CPU"}
    assert [entry["repetition_index"] for entry in result["benchmarks"]] == [0, 0, 1, 1, 2, 2]
    assert _bench.times_of("r", result) == {"Encode": [1500.0] * 3, "Decode": [500.0] * 3}
    calls = Path("calls.txt").read_text().splitlines()
    assert len(calls) == 3
    given = {"--benchmark_filter=code", "--benchmark_min_time=0.05", "--threads=2"}
    assert given < set(calls[0].split())


def test_programs_take_turns() -> None:
    programs = [str(shutil.copy(FAKE, name)) for name in ("./a", "./b")]
    first, second = _bench.measure(programs, [], 2)
    assert len(first["benchmarks"]) == len(second["benchmarks"]) == 4
    assert [call[0] for call in Path("calls.txt").read_text().splitlines()] == list("abba")


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("fail", 2, "fake_bench.py: failed with exit code 2: dlsim_bench: --threads: out of range"),
        ("garbage", 3, "bad JSON"),
    ],
)
def test_a_failed_run_leaves_nothing(
    bench: Any, monkeypatch: pytest.MonkeyPatch, how: str, code: int, words: str
) -> None:
    monkeypatch.setenv("FAKE_BENCH", how)
    found, out, err = bench("run", "--program", FAKE, "--out", "r.json")
    assert (found, out) == (code, "") and words in err
    assert os.listdir() == ["calls.txt"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--program", "/nonexistent", "--out", "r"], 3, "/nonexistent: cannot be run"),
        (["run", "--program", FAKE, "--out", "/no/r"], 3, "/no/r: cannot be written"),
        (["run", "--out", "r", "--repetitions", 0], 2, "--repetitions: expected 1 or more"),
        (["compare", "a.json"], 2, "NEW"),
        (["compare", "a.json", "b.json", "--threshold", "0.05"], 2, "--threshold"),
        (["compare", "a.json", "b.json", "--threshold", "nan%"], 2, "--threshold"),
        (["compare", "a.json", "missing.json"], 3, "missing.json: No such file"),
        (["compare", "a.json", "b.json"], 3, "cpu_model: differs, expected X, got Y"),
        (["compare", "a.json", "few.json"], 3, "too few repetitions, expected 5 or more"),
        (["compare", "a.json", "other.json"], 3, "no benchmark in common"),
        (["compare", "a.json", "text.json"], 3, "text.json: expected JSON of Google Benchmark"),
        (["compare", "a.json", "zero.json"], 3, "zero.json: Encode: no time"),
        (["compare", "a.json", "week.json"], 3, "week.json: bad benchmark"),
    ],
)
def test_mistakes_are_one_line(
    bench: Any, arguments: Sequence[object], code: int, words: str
) -> None:
    times = [10 + i for i in range(11)]
    write("a.json", document(times, cpu_model="X"))
    write("b.json", document(times, cpu_model="Y"))
    write("few.json", document(times[:4]))
    write("other.json", document(times, "Decode"))
    write("text.json", "text")
    write("zero.json", document([0]))
    write("week.json", {"context": {}, "benchmarks": [{"name": "Encode", "time_unit": "weeks"}]})
    found, out, err = bench(*arguments)
    assert (found, out) == (code, "")
    assert err.count("\n") == 1 and words in err, err
