# SPDX-License-Identifier: Apache-2.0
"""`dlsim bench` as users run it: exit codes, messages, files. fake_bench.py acts as dlsim_bench."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_samples import bench_document, count_document
from import_cases import run_dlsim

from dlsim._bench import _kernels, _results, _scaling
from dlsim._bench._baselines import slug
from dlsim._errors import InputError

HERE = Path(__file__).parent
ENCODE = "Encode/cb16/rne/AVX2/L2/grad/threads:1"
DECODE = "Decode/cb16/-/AVX2/L2/grad/threads:1"


def times(factor: float) -> list[float]:
    return [factor * (100 + 0.01 * i) for i in range(11)]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DLSIM_BENCH", str(HERE / "fake_bench.py"))
    monkeypatch.chdir(tmp_path)


def write(name: str, document: object) -> str:
    Path(name).write_text(json.dumps(document))
    return name


def pair(base: float, new: float) -> tuple[str, str]:
    """Writes results of one kernel before and after."""
    return (
        write("a.json", bench_document({ENCODE: times(base)})),
        write("b.json", bench_document({ENCODE: times(new)})),
    )


def bench(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_dlsim("bench", *arguments)
    assert done.returncode == code, done.stderr
    return done


def refuse(code: int, words: Sequence[str], *arguments: object) -> None:
    done = bench(*arguments, code=code)
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def bench_json(*arguments: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(bench(*arguments).stdout)
    return document


def test_compare_prints_the_rule_a_table_and_a_summary() -> None:
    pytest.importorskip("scipy")
    write("a.json", bench_document({ENCODE: times(1), "gone": times(1)}))
    write("b.json", bench_document({ENCODE: times(2), "new": times(1)}))
    text = bench("compare", "a.json", "b.json", "--json", "c.json").stdout
    for words in (
        *(ENCODE, "slower", "+100.0 %", "50 %", "median time rose by more than 5 %", "p < 0.01"),
        *("only in base: gone", "only in new: new"),
        "1 kernel compared: 1 slower, 0 inconclusive, 0 faster, 0 same",
    ):
        assert words in text
    result = json.loads(Path("c.json").read_text())
    assert result["schema"] == "dlsim.bench.compare/1"
    kernel = result["kernels"][0]
    assert (kernel["verdict"], kernel["median_ratio"], kernel["u"]) == ("slower", 2, 121)
    assert kernel["base"]["repetitions"] == 11


def test_the_gate_fails_if_a_kernel_is_slower() -> None:
    pytest.importorskip("scipy")
    base, new = pair(1, 1.2)
    done = bench("gate", base, new, code=1)
    assert done.stderr == f"dlsim bench gate: slower: {ENCODE} (+20.0 %)\n"
    for arguments in ((base, base), (new, base), (base, new, "--threshold", "30%")):
        assert bench("gate", *arguments).stderr == ""


def test_limits_and_peers_pass_the_gate() -> None:
    pytest.importorskip("scipy")
    base, new = pair(1, 2)
    document = json.loads(Path(new).read_text())
    for entry in document["benchmarks"]:
        entry["label"] = "peer"
    assert "1 limits and peers unjudged" in bench("gate", base, write("p.json", document)).stdout


def test_without_scipy_times_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    from dlsim._bench._comparison import mann_whitney

    with pytest.raises(ValueError, match=r"needs SciPy: pip install scipy, or .*\[bench\]"):
        mann_whitney([1], [2])


def test_counts_need_no_scipy() -> None:
    write("i.json", count_document({ENCODE: 1000}))
    write("j.json", count_document({ENCODE: 1011}))
    assert bench("gate", "i.json", "i.json").stderr == ""
    assert bench("gate", "--instructions", "i.json", "j.json", code=1).stderr != ""


def test_incomparable_files_are_exit_code_4() -> None:
    base, _ = pair(1, 1)
    other = bench_document({ENCODE: times(1)})
    other["dlsim"].update(cpu_model="B", compiler="Clang")
    words = ["cpu_model 'Some CPU (R) 1.0' against 'B'", "compiler 'GNU 12.2.0' against 'Clang'"]
    refuse(4, words, "compare", base, write("c.json", other))
    write("i.json", count_document({ENCODE: 1}))
    refuse(4, ["kind 'time' against 'instructions'"], "gate", base, "i.json")
    refuse(4, ["no chosen kernel"], "compare", base, base, "--filter", "nothing")


def test_wrong_usage_and_bad_files() -> None:
    base, _ = pair(1, 1)
    Path("bad.json").write_text("{")
    refuse(2, ["'gat'"], "gat")
    refuse(2, ["no file"], "compare")
    refuse(2, ["expected BASE NEW"], "compare", base, base, base)
    refuse(2, ["--threshold: out of range (did you mean '5%'?)"], *("compare", base, base),
           "--threshold", "5")  # fmt: skip
    refuse(2, ["--alpha"], "compare", base, base, "--alpha=-1")
    refuse(2, ["--filter: malformed"], "compare", base, base, "--filter", "(")
    refuse(2, ["would replace what is read"], "compare", base, base, "--json", base)
    refuse(3, ["bad.json: bad JSON"], "gate", base, "bad.json")
    refuse(3, ["holds times"], "gate", "--instructions", base, base)
    refuse(3, ["none.json: cannot be opened"], "compare", base, "none.json")


def test_the_baseline_of_the_processor() -> None:
    pytest.importorskip("scipy")
    base, new = pair(1, 2)
    at = ("--baseline-dir", "deep/baselines")
    refuse(3, ["no baseline for this processor", "dlsim bench bless"], "compare", new, *at)
    stored = bench("bless", base, *at).stdout.strip()
    assert stored == "deep/baselines/some-cpu-r-1-0.json"
    assert Path(stored).read_bytes() == Path(base).read_bytes()
    assert "1 slower" in bench("gate", new, *at, code=1).stdout
    refuse(2, ["would replace what is read"], "compare", new, *at, "--json", stored)
    write("few.json", bench_document({ENCODE: [1, 2]}))
    refuse(3, ["too few repetitions, expected at least 6, got 2"], "bless", "few.json", *at)
    assert slug("AMD EPYC 9654 96-Core Processor") == "amd-epyc-9654-96-core-processor"
    assert slug(" ../../etc ") == "etc"


def test_a_run_spreads_repetitions_over_processes() -> None:
    bench("run", "--repetitions", 7, "--processes", 3, "--out", "r.json")
    result = json.loads(Path("r.json").read_text())
    block = result["dlsim"]
    assert (block["schema"], block["processes"], block["repetitions"]) == ("dlsim.bench/1", 3, 7)
    assert (block["cpu_model"], len(result["benchmarks"])) == ("Fake CPU", 21)
    first = result["benchmarks"][:7]
    assert [entry["process"] for entry in first] == [0, 0, 0, 1, 1, 2, 2]
    assert [entry["repetition_index"] for entry in first] == list(range(7))
    assert {entry["name"] for entry in first} == {ENCODE}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--sizes", "L2"], [ENCODE, DECODE]),
        (["--filter", "^Encode", "--sizes", "L1,L2"], [ENCODE]),
        (["--filter", "-^Encode"], [DECODE]),
    ],
)
def test_a_run_selects_by_pattern_and_size(arguments: list[str], names: list[str]) -> None:
    result = bench_json("run", "--out", "-", "--repetitions", 1, *arguments)
    assert [entry["name"] for entry in result["benchmarks"]] == names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "L3"], ["--sizes: unknown size", "DRAM, L2", "'L3'"]),
        (["--filter", "nothing"], ["--filter: no benchmark matches", "'nothing'"]),
        (["--repetitions", "0"], ["--repetitions"]),
        (["--processes", "12"], ["--processes", "at most 11"]),
        (["--min-time", "0"], ["--min-time"]),
        (["--trace-mib", "1"], ["--trace-mib", "--commands"]),
        (["--commands", "--instructions"], ["--instructions", "--commands"]),
        (["--instructions", "--device", "cuda"], ["--instructions", "--device cpu"]),
        (["--commands", "--trace-mib", "0"], ["--trace-mib: out of range"]),
        (["--commands", "--filter", "nothing"], ["--filter: no command matches"]),
        (["--commands", "--sizes", "huge"], ["--sizes", "large, small", "'huge'"]),
        (["--commands", "--threads", "0"], ["--threads: out of range"]),
    ],
)
def test_wrong_usage_of_run(arguments: list[str], words: list[str]) -> None:
    refuse(2, words, "run", "--out", "r.json", *arguments)
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("fail", 70, "failed with exit code 1: dlsim_bench: --threads: out of range"),
        ("die", 70, "ended by a signal (Killed)"),
        ("garbage", 70, "not JSON"),
    ],
)
def test_a_failed_run_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, how: str, code: int, words: str
) -> None:
    monkeypatch.setenv("FAKE_BENCH", how)
    refuse(code, [words], "run", "--out", "r.json")
    assert os.listdir() == []


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSIM_BENCH", "/nonexistent")
    refuse(3, ["$DLSIM_BENCH: no such program"], "run", "--out", "r.json")
    refuse(3, ["cannot be written"], "run", "--out", "/nonexistent/r.json")


def start(*arguments: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(_results.__file__).parents[2])}
    command = [sys.executable, "-m", "dlsim", "bench", "run", *map(str, arguments)]
    return subprocess.Popen(command, env=environment)


def test_a_signal_ends_the_run_and_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("alive")
    monkeypatch.setenv("FAKE_BENCH", "hang")
    monkeypatch.setenv("FAKE_BENCH_ALIVE", "alive")
    child = start("--out", "r.json")
    with open("alive", "rb", buffering=0) as alive:  # waits until the program hangs
        assert alive.read(1) == b"."
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM
        assert alive.read(1) == b""  # the program is gone, and its end of the pipe with it
    assert os.listdir() == ["alive"]


def test_callgrinds_dumps() -> None:
    dumps = (
        "desc: Trigger: Client Request: a/b\ntotals: 12\n"
        "desc: Trigger: Client Request: c\ntotals: 7\ndesc: Trigger: Program termination\n"
        "totals: 99\n"
    )
    assert _kernels.parse_callgrind(dumps) == {"a/b": 12, "c": 7}
    with pytest.raises(Exception, match="no counts"):
        _kernels.parse_callgrind("desc: Trigger: Program termination\ntotals: 99\n")


def test_counting_needs_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="valgrind: not found"):
        _kernels.count_instructions("dlsim_bench", _kernels.Request())


def test_patterns_match_exactly_these_names() -> None:
    exact = _kernels.name_filter(_kernels.exact_pattern(["a.b", "c(d)/e+"]))
    assert exact("a.b") and exact("c(d)/e+")
    assert not (exact("axb") or exact("a.bc") or exact("xa.b"))


def parse(document: object) -> _results.Results:
    return _results.read_results(write("r.json", document))


def test_repetitions_are_gathered_and_aggregates_skipped() -> None:
    document = bench_document({ENCODE: [100, 101], "other/threads:2": [7], "gpu/x": [5]})
    document["benchmarks"].append({"name": "x_mean", "run_name": "x", "run_type": "aggregate"})
    file = parse(document)
    assert [kernel.cost for kernel in file.kernels] == [[100, 101], [14], [10]]  # CPU, wall-clock
    assert file.kernels[0].bytes_per_second == [2e9, 2e9]
    for unit, factor in {"us": 1e3, "ms": 1e6, "s": 1e9}.items():
        document["benchmarks"][0]["time_unit"] = unit
        assert parse(document).kernels[0].cost[0] == 100 * factor


@pytest.mark.parametrize(
    "field",
    "cpu_model simd_target compiler compiler_flags threads dram_mib gpu gpu_driver".split(),
)
def test_each_field_that_differs_is_named(field: str) -> None:
    base, other = bench_document({ENCODE: [3]}), bench_document({ENCODE: [3]})
    other["dlsim"][field] = "another"
    with pytest.raises(_results.IncomparableError, match=f"{field} .* against 'another'"):
        _results.require_comparable(parse(base), parse(other))


def test_what_must_agree_depends_on_the_kind() -> None:
    counts, elsewhere = count_document({ENCODE: 5}), count_document({ENCODE: 5})
    elsewhere["dlsim"].update(cpu_model="another", dram_mib="another")
    _results.require_comparable(parse(counts), parse(elsewhere))
    plain = bench_document({"BM_Sort/8": [3, 4, 5]})
    block = plain.pop("dlsim")
    assert parse(plain).identity == {
        **{"kind": "time", "num_cpus": "2", "mhz_per_cpu": "2600"},
        "library_build_type": "release",
    }
    # dlsim_bench puts into the context what `dlsim bench run` puts into a block of its own.
    plain["context"].update(block)
    _results.require_comparable(parse(plain), parse(bench_document({ENCODE: [3]})))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((), 5, "no result of a benchmark"),
        (("context",), 5, 'bad "context"'),
        (("benchmarks",), 5, 'bad "benchmarks"'),
        (("benchmarks",), [], "no benchmark in it"),
        (("benchmarks", 0), 5, "bad benchmark"),
        (("benchmarks", 0, "run_name"), 5, 'bad "run_name"'),
        (("benchmarks", 0, "cpu_time"), "fast", f'{ENCODE}: bad "cpu_time"'),
        (("benchmarks", 0, "cpu_time"), 0, "positive"),
        (("benchmarks", 0, "real_time"), -1, 'bad "real_time"'),
        (("benchmarks", 0, "time_unit"), "weeks", "weeks"),
        (("benchmarks", 0, "error_occurred"), True, "the benchmark failed"),
        (("dlsim",), 5, 'bad "dlsim"'),
        (("dlsim", "schema"), "dlsim.bench/2", "unknown schema, expected dlsim.bench/1"),
        (("dlsim", "kind"), "weight", 'bad "kind"'),
    ],
)
def test_what_is_wrong_where(path: tuple[Any, ...], value: object, words: str) -> None:
    document: Any = bench_document({ENCODE: [100]})
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    if path:
        holder[path[-1]] = value
    with pytest.raises(InputError, match=r"^r.json: ") as error:
        parse(document if path else value)
    assert words in str(error.value)


def test_every_truncation_is_refused() -> None:
    text = json.dumps(bench_document({ENCODE: [100, 101]}))
    duplicate = '{"context":{},"context":{},"benchmarks":[]}'
    for bad in [*(text[:size] for size in range(0, len(text), 7)), duplicate, "[" * 10_000]:
        Path("r.json").write_text(bad)
        with pytest.raises(InputError, match=r"^r.json: bad JSON"):
            _results.read_results("r.json")


@pytest.mark.parametrize(
    ("wall", "cpu", "threads", "share"),
    [
        (1.0, 2.0, 2, 0),  # both work all the time
        (1.0, 1.0, 2, 1),  # one after the other
        (0.55, 1.0, 2, 0.1),  # 0.1 alone, 0.9 shared
        (0.325, 1.0, 4, 0.1),
        (0.4, 1.0, 2, 0),  # clocks differ: never below zero
    ],
)
def test_the_serial_share(wall: float, cpu: float, threads: int, share: float) -> None:
    assert _scaling.serial_share(wall, cpu, threads) == pytest.approx(share, abs=1e-12)


def entry(name: str, wall: float, cpu: float) -> dict[str, Any]:
    return {"name": name, "real_time": 1e9 * wall, "cpu_time": 1e9 * cpu}


def test_scaling_is_of_medians() -> None:
    entries = [entry("c/threads:1", wall, 10) for wall in (10, 10, 90)]
    entries += [entry("c/threads:2", 5.5, 10), entry("d/threads:2", 5, 10)]
    first, second = _scaling.scaling_of(entries)
    assert first["speedup"] == 10 / 5.5
    assert first["serial_share"] == pytest.approx(0.1)
    assert first["efficiency"]["16"] == pytest.approx(1 / 2.5)
    assert "speedup" not in second  # not measured on one thread


@pytest.mark.parametrize("busy", [False, True])
def test_a_busy_machine_is_named(busy: bool) -> None:
    entries = [entry("c/threads:1", 10, 7 if busy else 9), entry("c/threads:2", 5, 10)]
    text = _scaling.command_report({"benchmarks": entries})
    assert ("The machine was busy" in text) == busy


def test_commands_are_timed_beside_their_limit(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    chosen = ("--filter", "(replay/fp16/cerebras|Stream)", "--sizes", "small", "--threads", "1,2")
    done = bench("run", "--commands", "--trace-mib", 1, "--trace-dir", traces, *chosen,
                 "--repetitions", 2, "--out", "r.json")  # fmt: skip
    assert "2 repetitions of 4 commands take about" in done.stderr
    for words in ("of limit", "speed-up", "serial", "16 cores", "64 cores"):
        assert words in done.stdout
    result = json.loads(Path("r.json").read_text())
    block = result["dlsim"]
    assert (block["suite"], block["trace_mib"]) == ("commands", "1")
    assert {"cpu_model", "simd_target", "compiler", "compiler_flags"} <= set(block)
    assert len(block["scaling"]) == 1
    assert len(result["benchmarks"]) == 8
    for each in result["benchmarks"]:
        assert min(each["real_time"], each["bytes_per_second"], each["fraction_of_stream"]) > 0
        assert ("label" in each) == each["name"].startswith("Stream/")
        assert ("peak_bytes" in each) != ("label" in each)
    assert list(traces.iterdir()) == []
    cold = bench_json("run", "--commands", "--cold", "--quiet", "--trace-mib", 1, "--trace-dir",
                      traces, "--repetitions", 1, "--threads", 1, "--sizes", "large",
                      "--out", "-")  # fmt: skip
    assert len(cold["benchmarks"]) == 3
    assert all("/large/cold/" in each["name"] for each in cold["benchmarks"])
    refuse(3, ["/nonexistent: cannot be made"], "run", "--commands", "--out", "-", "--quiet",
           "--trace-dir", "/nonexistent")  # fmt: skip


def test_nothing_is_left_of_commands_that_were_killed(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()

    def wait_until(is_empty: bool) -> bool:
        end = time.monotonic() + 60
        while any(traces.iterdir()) == is_empty and time.monotonic() < end:
            time.sleep(0.01)
        return any(traces.iterdir()) != is_empty

    child = start("--commands", "--quiet", "--trace-mib", 8, "--trace-dir", traces, "--out", "r")
    assert wait_until(is_empty=False)
    child.kill()
    child.wait()
    assert wait_until(is_empty=True)
