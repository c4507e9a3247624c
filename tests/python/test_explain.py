# SPDX-License-Identifier: Apache-2.0
"""dlsim.explain: logs of the command, TensorBoard's scalars, and W&B's exports."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import pytest

import dlsim
from dlsim.logs._command import main

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
    policies = {row["policy"]: row["settings"] for row in result["policies"]}
    assert {"init_scale=16384", "growth_interval=10"} <= set(policies["torch"])
    assert result["summary"]["steps"] == STEPS - 1  # the last one is not told
    assert result["summary"]["skipped_steps"] == 4


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

    def test_the_command_reads_it_too(
        self, log: Callable[..., Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([str(log("loss_scale"))]) == 0
        assert "init_scale 2^14" in capsys.readouterr().out


def test_the_diagnosis_is_a_side_and_its_evidence(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    overflow = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    log.write_text(f"step 0: loss 2.3\n{overflow}step 1: loss nan\n")
    diagnosis = dlsim.explain(log).diagnosis
    assert diagnosis.side == "forward"
    assert diagnosis.evidence.startswith("the loss is nan at the first skipped step (line 3)")
    silent = dlsim.explain(LOGS / "apex-warm-up.log").diagnosis
    assert silent == {
        "side": "unknown",
        "evidence": "the log prints no loss that dlsim recognizes",
    }


# The kinds of mistakes that were found in logs which nobody here had tried; two more of each.

MEGATRON = " iteration {}/ 9000 | elapsed time per iteration (ms): 1.0 | loss scale: {} |"
APEX = "Gradient overflow.  Skipping step, loss scaler {} reducing loss scale to {}"
FP16 = "[2024-03-08 16:33:21,416] [INFO] [fused_optimizer.py:419:_update_scale] {}"
TAG = "run-x-tag-train_loss_scale.csv"


def falling(first: int, last: int) -> list[float]:
    """Scales from 2^first down to 2^last."""
    return [2.0**k for k in range(first, last - 1, -1)]


def table(header: str, rows: Iterable[Sequence[object]]) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def in_steps(scales: Sequence[float], gap: int, start: int = 0) -> list[tuple[int, float]]:
    return [(start + i * gap, scale) for i, scale in enumerate(scales)]


def every(gap: int, form: str, scales: Sequence[float], start: int = 0) -> str:
    return "".join(form.format(n, s) + "\n" for n, s in in_steps(scales, gap, start))


def overflow(number: int, *lines: str) -> str:
    said = [f"Grad overflow on iteration: {number}", *lines]
    return "".join(FP16.format(line) + "\n" for line in said)


def reduced(number: int, high: float) -> str:
    return overflow(number, f"Reducing dynamic loss scale from {high} to {high / 2}")


def statically(number: int, scale: float) -> str:
    return overflow(number, f"Using static loss scale of: {scale}")


def grown(low: float) -> str:
    lines = "No Grad overflow for 500 iterations", f"Increasing dynamic loss scale from {low} to "
    return f"{FP16.format(lines[0])}\n{FP16.format(lines[1])}{2 * low}\n"


def internevo(number: int, scale: float, total: int) -> str:
    return f"step={number} loss=2.0 loss_scale={scale} inf_nan_skip_batches={total}\n"


def skip_of_internevo(number: int) -> str:
    return f"Warning: skip parameter update at step {number}.\n"


def fairseq(updates: int, scale: str) -> str:
    entry = {"epoch": 1, "train_num_updates": f"{updates}", "train_loss_scale": scale}
    return f"2021-01-06 | INFO | train | {json.dumps(entry)}\n"


DEEPSPEED = (
    "[deepspeed] OVERFLOW! Rank {} Skipping step. Attempted loss scale: {}, reducing to {}\n"
)
THREE = "".join(DEEPSPEED.format(0, 2**k, 2 ** (k - 1)) for k in (16, 15, 14))

# Per kind: its name, a file's name and text, and what must hold.
CASES: list[tuple[str, str, str | bytes, str]] = [
    # A scale that falls for good is no probing of a limit, however far apart its values are.
    ("S01", "a.csv", table("step,loss_scale", in_steps(falling(18, -3), 500)), "divergence"),
    (
        "S01",
        "a.log",
        every(700, "iter {} grad_scale {}", [2.0**16] * 4 + falling(15, -2)),
        "divergence",
    ),
    # Each scaler of Apex, and each rank that differs, is one of its own.
    ("A01", "a.log", "".join(APEX.format(k % 2, 2.0**-k) + "\n" for k in range(6)), "divergence"),
    ("A01", "a.log", APEX.format(0, 2048.0) + "\n" + APEX.format(1, 64.0) + "\n", "others 1"),
    # What lies between two values, or before the first, is not told.
    ("S02", "a.csv", table("step,loss_scale", in_steps([2.0**15] * 5, 4000)), "unknown"),
    ("S02", "a.log", every(200, MEGATRON, [16384.0] * 4, 200), "unknown; from_start False"),
    (
        "S02",
        "a.csv",
        "step,x - loss_scale,x - loss_scale__MAX\n0,8,8\n50,8,16\n99,8,8\n",
        "unknown",
    ),
    (
        "S02",
        "a.csv",
        "step,x - loss_scale,x - loss_scale__MIN\n0,8,8\n50,8,8\n99,8,0.125\n",
        "divergence",
    ),
    # A skip that is marked, and the fall that it made, are one.
    (
        "J02",
        "a.jsonl",
        '{"step": 1, "grad_norm": NaN, "loss_scale": 64}\n'
        '{"step": 9, "grad_norm": 1.5, "loss_scale": 32}\n',
        "skips 1",
    ),
    # A finite norm does not excuse the step before, which has no line.
    (
        "J02",
        "a.jsonl",
        '{"step": 0, "grad_norm": 0.5, "loss_scale": 64}\n'
        '{"step": 2, "grad_norm": 1.5, "loss_scale": 32}\n',
        "skips 1",
    ),
    # A finite norm tells of the step of its own line only.
    (
        "J01",
        "a.jsonl",
        every(10, '{{"step": {}, "grad_norm": 1.5, "loss_scale": {}}}', [4096.0, 512.0], 50),
        "skips 3",
    ),
    (
        "J01",
        "a.jsonl",
        every(1, '{{"step": {}, "grad_norm": 0.5, "grad_scale": {}}}', falling(12, 9), 70),
        "skips 3",
    ),
    # Falls that no growth came before are not "as expected from growth".
    (
        "V01",
        "a.csv",
        table("step,loss_scale", in_steps([2.0**20] * 9 + [2.0**19] * 30, 50)),
        "unknown",
    ),
    ("V01", "a.log", every(1, "step {} loss_scale: {}", [1024.0] * 40 + [512.0] * 40), "unknown"),
    # The log's own counts of skipped steps, also where the scale stays.
    ("I01", "a.log", internevo(0, 8.0, 0) + skip_of_internevo(1) + internevo(1, 8.0, 1), "skips 1"),
    ("I01", "a.log", "".join(internevo(n, 32.0, min(n, 3)) for n in range(9)), "skips 3"),
    # Means are no path.
    (
        "E01",
        "a.csv",
        table("step,grad_scale", in_steps([65536, 77812.5, 131072, 99001.25], 1)),
        "means",
    ),
    (
        "E01",
        "a.jsonl",
        every(1, '{{"step": {}, "actor/loss_scale": {}}}', [3072.0, 2048.0, 1792.0]),
        "means",
    ),
    # A static scale of DeepSpeed.
    ("D01", "a.log", statically(3, 4096.0) + statically(9, 4096.0), "loss_scale=4096"),
    ("D01", "a.log", statically(0, 8.0) + statically(1, 8.0), "loss_scale=8"),
    # DeepSpeed in the middle of training, and with lines left out.
    ("D02", "a.log", reduced(5000, 64.0) + grown(32.0) + reduced(5600, 64.0), "skips 2"),
    ("D02", "a.log", reduced(5000, 64.0) + "...\n" + reduced(95600, 64.0), "steps 2"),
    # Ranks that do not name themselves print each line twice.
    (
        "A02",
        "a.log",
        "".join(
            f"{rank}: {line}\n"
            for line in (
                "num_updates=10, loss_scale=8",
                "gradient overflow detected, ignoring gradient, setting loss scale to: 4.0",
                "num_updates=20, loss_scale=4",
            )
            for rank in (0, 1)
        ),
        "skips 1",
    ),
    # Samples on the axis.
    (
        "M01",
        "run-a-tag-loss-scale vs samples.csv",
        table(
            "Wall time,Step,Value", ((0.5, 256 * n, s) for n, s in in_steps(falling(16, 13), 1, 1))
        ),
        "steps 3",
    ),
    (
        "M01",
        "Train_Samples_loss_scale.csv",
        table("step,loss_scale", ((96 * n, s) for n, s in in_steps([8.0] * 5, 1, 1))),
        "steps 4",
    ),
    # fairseq's JSON at the end of an epoch.
    ("F01", "a.log", fairseq(100, "0.5") + fairseq(200, "0.125"), "divergence"),
    ("F01", "a.log", fairseq(100, "64") + fairseq(200, "32"), "skips 1"),
    # Encodings and compressed files.
    ("U01", "a.log", THREE.encode("utf-16"), "skips 3"),
    ("U01", "a.log", THREE.encode("utf-16-be"), "skips 3"),
    ("U01", "a.log.xz", lzma.compress(THREE.encode()), "skips 3"),
    ("U01", "a.log.bz2", bz2.compress(THREE.encode()), "skips 3"),
    # The line of apex.fp16_utils is not DeepSpeed's.
    (
        "P01",
        "a.log",
        "OVERFLOW! Skipping step. Attempted loss scale: 8, reducing to 4\n",
        "apex-fp16-utils",
    ),
    ("P01", "a.log", "OVERFLOW! Skipping step. Attempted loss scale: 32\n" * 2, "apex-fp16-utils"),
]


@pytest.mark.parametrize(("kind", "name", "text", "expected"), CASES)
def test_kinds_of_mistakes(
    tmp_path: Path, kind: str, name: str, text: str | bytes, expected: str
) -> None:
    log = tmp_path / name
    log.write_bytes(text.encode() if isinstance(text, str) else text)
    result = dlsim.explain(log)
    summary, policies = result["summary"], result["policies"]
    found = {
        result["skips"]["verdict"],
        f"steps {summary['steps']}",
        f"skips {summary['skipped_steps']}",
        f"from_start {result['from_start']}",
        f"others {len(result['others'])}",
        *(policy["policy"] for policy in policies),
        *(setting for policy in policies for setting in policy["settings"]),
    }
    if any("mean over steps" in note for note in result["notes"]):
        found.add("means")
        assert not result["brackets"] and summary["min_scale"] is None
    assert set(expected.split("; ")) <= found, (kind, found)
    assert kind in ("S02", "D02") or "as expected from growth" not in result.report


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no loss scale found"),
        (b"\0" * 999, "no loss scale found"),
        (b"\x1f\x8bxxxx", "cannot be decompressed"),
        (gzip.compress(b"step: 1 loss_scale: 8\n" * 999)[:-9], "cannot be decompressed"),
        (b"\x28\xb5\x2f\xfdxxxx", "compressed as zstd, expected text, gzip, bzip2 or xz"),
        (b"[" * 99_999 + b"{" + b'"a":[' * 99_999, "no loss scale found"),
        (b'{"log_history": ' + b"[" * 99_999, "bad JSON: nested too deeply"),
        (b"step,loss_scale\n1,64k\n", ":2: not a number, expected a number in each column"),
        (b"step,loss_scale\ninf,8\n", ":2: not a step, expected an integer"),
        (b"step: 1 loss_scale: 8\nstep: 99999999 loss_scale: 8\n", "too far from the first one"),
        (b"step: 1 loss_scale: nan\nstep: 2 loss_scale: 1e400\n", "no loss scale found"),
        (b"step: -2 loss_scale: 8\nstep: -1 loss_scale: 8\n", "no loss scale found"),
        (b"".join(APEX.format(k, 8.0).encode() + b"\n" for k in range(99)), "99 loss scalers"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, text: bytes, message: str) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(text)
    with pytest.raises(dlsim.InputError, match=message) as refused:
        dlsim.explain(log)
    assert "\n" not in str(refused.value)


def test_damaged_logs_are_explained_or_refused(tmp_path: Path) -> None:
    random = Random(20261129)
    logs = [path.read_bytes() for path in sorted(LOGS.glob("*.*")) if path.suffix != ".md"]
    pieces = [
        b"nan",
        b"1e400",
        b"-1",
        b"99999999999999999999",
        b"\n",
        b"\r",
        b"\0",
        b"{",
        b'"',
        b",",
    ]
    damaged = tmp_path / "a.log"
    for _ in range(150):
        text = bytearray(random.choice(logs)[:20_000])
        for _ in range(random.randint(1, 8)):
            at = random.randrange(len(text) + 1)
            text[at : at + random.randint(0, 12)] = random.choice([*pieces, text[:40]])
        damaged.write_bytes(text)
        try:
            result = dlsim.explain(damaged)
        except dlsim.InputError as refused:
            assert "\n" not in str(refused)
        else:
            json.dumps(result.to_dict(), allow_nan=False)


def test_a_long_line_is_read_at_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("step: 1 loss_scale: 64 " + "x" * 5_000_000 + "\nstep: 2 loss_scale: 32\n")
    assert dlsim.explain(log)["summary"]["skipped_steps"] == 1


def test_a_text_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlsim.logs.reading._MOST_BYTES", 1 << 20)
    log = tmp_path / "a.log.gz"
    log.write_bytes(gzip.compress(b"\0" * (1 << 22)))
    with pytest.raises(dlsim.InputError, match="too large, expected at most 1 GiB of text"):
        dlsim.explain(log)


def test_very_small_scales_have_no_policy_of_another_stack(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    counts = [("1e-303", 0), ("1e-303", 1), ("5e-304", 1)]
    log.write_text(
        "".join(
            f"{MEGATRON.format(n, scale)} number of skipped iterations: {skips} |\n"
            for n, (scale, skips) in enumerate(counts, start=1)
        )
    )
    result = dlsim.explain(log)
    assert {policy["policy"] for policy in result["policies"]} <= {"megatron"}
    assert result["skips"]["verdict"] == "divergence"


def test_a_run_of_mlflow(tmp_path: Path) -> None:
    rows = (f"1690000000{n:03} {s} {n}" for n, s in enumerate(scales_of_torch()))
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    (metrics / "loss_scale").write_text("\n".join(rows) + "\n")
    check(dlsim.explain(tmp_path))
    check(dlsim.explain(metrics / "loss_scale"))
    with pytest.raises(dlsim.InputError, match=r"is a directory, expected a log, or .* got none"):
        dlsim.explain(LOGS)


@pytest.mark.parametrize("policy", ["torch", "megatron", "deepspeed", "fairseq"])
def test_a_log_of_a_scaler_says_what_it_did(tmp_path: Path, policy: str) -> None:
    """Also of scalers of other stacks, whose steps are read though no policy may fit."""
    scaler = dlsim.LossScaler(policy)
    rows, skipped = [], 0
    for step in range(40):
        overflows = step in (0, 1, 2, 20)
        rows.append((step, scaler.scale, int(overflows)))
        skipped += scaler.next(overflows, float("inf"))["skip"]
    log = tmp_path / "a.csv"
    log.write_text(table("step,scale,skipped", rows))
    summary = dlsim.explain(log)["summary"]
    assert (summary["steps"], summary["skipped_steps"]) == (40, skipped)
    assert summary["max_scale"] == rows[0][1]


class TestCommand:
    """The command `dlsim explain`."""

    def test_it_writes_what_it_reads_back(self, tmp_path: Path) -> None:
        path, log = tmp_path / "path.csv", str(LOGS / "megatron-steady.log")
        assert main([log, "--csv", str(path), "--quiet"]) == 0
        first, again = dlsim.explain(log)["summary"], dlsim.explain(path)["summary"]
        for name in ("steps", "skipped_steps", "min_scale", "max_scale"):
            assert first[name] == again[name]

    def test_an_expectation_that_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        log = str(LOGS / "megatron-steady.log")
        assert main([log, "--quiet", "--expect", "skipped_steps>=17"]) == 0
        assert main([log, "--quiet", "--expect", "skipped_steps<2^3"]) == 1
        said = capsys.readouterr().err
        assert said == "dlsim explain: skipped_steps is 17, expected skipped_steps<2^3\n"

    @pytest.mark.parametrize(
        ("expectation", "message"),
        [
            ("skiped_steps>0", "unknown figure .did you mean 'skipped_steps'.."),
            ("fp16/*: skipped_steps>0", "a log has no runs to choose from"),
            ("skipped_steps", "not an expectation"),
            ("steps<many", "not a number"),
        ],
    )
    def test_a_wrong_expectation(self, expectation: str, message: str) -> None:
        with pytest.raises(dlsim.UsageError, match=message):
            main([str(LOGS / "scale.csv"), "--expect", expectation])
