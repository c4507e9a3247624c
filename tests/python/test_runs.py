# SPDX-License-Identifier: Apache-2.0
"""`dlsim.replay` and the others give what the command gives."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled_traces import files_of
from running import DLSIM

import dlsim

TRACES = Path(__file__).parents[1] / "data" / "traces"
TRACE = TRACES / "reg-diabetes-cut"


def run(*arguments: str) -> Any:
    """Returns the JSON that the command prints."""
    command = [*DLSIM, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "run.profile"
    dlsim.profile(TRACE, path, quiet=True)
    return path


def test_scaler_takes_lists_of_any_length() -> None:
    steps = range(0, 100_000, 3)
    result = dlsim.scaler("torch", 100_000, overflow_at=list(steps), settings={"init_scale": 1e30})
    assert len(result["skipped"]) == len(steps)
    short = dlsim.scaler("popart", 3, histogram=[(10, 0), (5, 5), "0:10"])
    assert short == run(
        *("scaler", "--policy", "popart", "--steps", "3"),
        *("--histogram", "10:0,5:5,0:10", "--json", "-"),
    )
    assert dlsim.scaler("torch", 2, overflow_at=[])["skipped"] == []


def test_parts_of_a_profile_make_the_whole(tmp_path: Path, profile: Path) -> None:
    for steps in (":599", "600:"):
        result = dlsim.profile(TRACE, tmp_path / "a.profile", steps=steps)
        assert result["profile"] == str(tmp_path / "a.profile")
    assert files_of(tmp_path / "a.profile") == files_of(profile)


def test_several_traces_are_read_one_after_another(tmp_path: Path) -> None:
    first, second = TRACE / "step-00000000.safetensors", TRACE / "step-00000050.safetensors"
    assert dlsim.info([first, str(second)])["trace"]["steps"] == 2


@pytest.mark.parametrize("value", [0.1, 2e15, 1 / 3, np.float32(0.1), 5e-324, 2**63, np.int64(7)])
def test_numbers_keep_all_their_bits(value: float) -> None:
    result = dlsim.scaler("apex", 1, settings={"init_scale": value, "max_loss_scale": 1e300})
    assert result["params"]["init_scale"] == float(value)


def test_truth_values_and_none_are_understood() -> None:
    off = dlsim.scaler("torch", 1, settings={"enabled": False}, config=None, resume_at=None)
    assert off["params"]["enabled"] is False
    with pytest.raises(TypeError, match=r"^replay: details: expected True or False, got int$"):
        dlsim.replay(TRACE, details=1)  # type: ignore[typeddict-item]


def test_a_format_may_be_a_format_object() -> None:
    named = dlsim.replay(TRACE, formats=["cb16", "fp16"], policies="static")
    assert dlsim.replay(TRACE, formats=[dlsim.CB16, dlsim.FP16], policies="static") == named
    assert dlsim.formats(dlsim.CB16) == dlsim.formats("cb16")


def test_names_that_look_like_options_are_paths(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "--quiet").symlink_to(TRACE)
    assert dlsim.info("--quiet")["trace"]["steps"] == 25
    assert dlsim.replay("--quiet", formats="fp16", quiet=np.bool_(True))["trace"]["steps"] == 25


def test_an_unknown_keyword_names_the_likely_one() -> None:
    with pytest.raises(TypeError, match=r"argument 'format', did you mean 'formats'\?"):
        dlsim.replay(TRACE, format="fp16")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"info\(\) .* 'zzz', expected tensors, "):
        dlsim.info(TRACE, zzz=1)  # type: ignore[call-arg]


def test_wrong_types_are_type_errors() -> None:
    with pytest.raises(TypeError, match=r"^info: expected a path or several, got int$"):
        dlsim.info(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^replay: expected a path, got float$"):
        dlsim.replay([TRACE, 1.5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^replay: settings: expected a mapping, got str$"):
        dlsim.replay(TRACE, settings="init_scale=1")  # type: ignore[typeddict-item]
    with pytest.raises(TypeError, match=r"^replay: tensors: expected a text or number, got list$"):
        dlsim.replay(TRACE, tensors=["a"])  # type: ignore[typeddict-item]


def test_errors_have_the_right_type_and_the_line_of_the_command() -> None:
    with pytest.raises(
        dlsim.UsageError, match=r"^format: unknown name \(did you mean 'fp16'\?\), .* got 'fp61'$"
    ):
        dlsim.replay(TRACE, formats="fp61")
    with pytest.raises(dlsim.InputError, match=r"^no-such-trace: cannot be opened: No such file"):
        dlsim.replay("no-such-trace")
    with pytest.raises(dlsim.InputError, match=r"no/such/folder.*No such file"):
        dlsim.profile(TRACE, "no/such/folder/x.profile")


def test_files_that_are_read_are_not_written_and_nothing_is_read_from_nowhere(
    tmp_path: Path,
) -> None:
    step = shutil.copy(TRACE / "step-00000000.safetensors", tmp_path)
    with pytest.raises(dlsim.UsageError, match=r"^--csv: would replace what TRACE names"):
        dlsim.replay(step, csv=step)
    with pytest.raises(dlsim.UsageError, match=r"^TRACE is required$"):
        dlsim.replay([])
    with pytest.raises(dlsim.InputError, match=r"^standard input: the caller does not provide it$"):
        dlsim.scaler("torch", 3, overflow_at="@-")


def test_a_refusal_keeps_the_result_of_the_other_policies() -> None:
    with pytest.raises(dlsim.PolicyRefusal, match=r"^The growth factor must be > 1.0.$") as caught:
        dlsim.replay(TRACE, policies=["torch", "static"], settings={"growth_factor": 0.5})
    assert caught.value.original_type == "AssertionError"
    assert caught.value.result is not None
    assert {run["policy"] for run in caught.value.result["runs"]} == {"torch", "static"}


def test_an_expectation_that_fails_stands_in_the_result() -> None:
    result = dlsim.replay(
        TRACE,
        formats="fp16",
        policies=["torch", "static"],
        expect=["steps==25", "fp16/torch:skipped_steps<0", "stopped_at_step!=none"],
        quiet=True,
    )
    skipped = result["runs"][0]["summary"]["skipped_steps"]
    assert [(e.run, e.expression, e.found, e.holds) for e in result.expectations] == [
        ("fp16/torch", "steps==25", 25, True),
        ("fp16/torch", "fp16/torch:skipped_steps<0", skipped, False),
        ("fp16/torch", "stopped_at_step!=none", None, False),
        ("fp16/static", "steps==25", 25, True),
        ("fp16/static", "stopped_at_step!=none", None, False),
    ]
    assert len(result.notes) == 3
    assert (
        result.notes[-1] == "fp16/static: stopped_at_step is none, expected stopped_at_step!=none"
    )
    assert dlsim.replay(TRACE, formats="fp16", policies="torch").expectations == []
    with pytest.raises(dlsim.UsageError, match=r"^--expect: unknown figure"):
        dlsim.replay(TRACE, expect="skiped_steps<3")


def test_exceptions_have_public_names_and_pass_between_processes() -> None:
    for name in ("Error", "InputError", "PolicyRefusal", "UsageError"):
        assert str(getattr(dlsim, name)) == f"<class 'dlsim.{name}'>"
    refusal = dlsim.PolicyRefusal("ValueError", "too large")
    refusal.result = dlsim.formats("fp16")
    copy = pickle.loads(pickle.dumps(refusal))
    assert (str(copy), copy.original_type) == ("too large", "ValueError")
    assert copy.result == refusal.result


def test_notes_are_without_the_name_of_the_command(tmp_path: Path) -> None:
    result = dlsim.profile(TRACE, tmp_path / "x.profile", steps="1:2")
    assert result.notes == ("no step has a number of --steps",)


COMMANDS = ("replay", "sweep", "tune", "diff", "profile", "info", "scaler")

# Options that functions give by themselves.
ELSEWHERE = {"json", "list", "help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_the_command_has_its_keyword(name: str) -> None:
    flags = {keyword.option for keyword in dlsim.runs.keywords(name).values()}
    help_text = subprocess.run(
        [*DLSIM, name, "--help"], check=True, capture_output=True, text=True
    ).stdout
    listed = set(re.findall(r"^ +(?:-\w,)?--([a-z0-9-]+)", help_text, re.MULTILINE))
    assert flags == listed - ELSEWHERE


def test_keywords_have_the_names_that_they_always_had() -> None:
    assert set(dlsim.runs.keywords("replay")) >= {
        "formats",
        "policies",
        "settings",
        "optimizers",
        "state",
    }
    assert set(dlsim.runs.keywords("sweep")) >= {"formats", "policies", "settings", "vary", "grid"}
    assert set(dlsim.runs.keywords("profile")) >= {"scaled_formats", "scales", "steps"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_every_keyword(name: str) -> None:
    text = inspect.getdoc(getattr(dlsim, name))
    assert text is not None
    listed = re.findall(r"^ {2}(\w+): \S", text, re.MULTILINE)
    assert listed == list(dlsim.runs.keywords(name))
    # In words of Python: no option of the command, nothing of its streams.
    assert not re.search(r"--[a-z]|repeatable|standard (input|output|error)|exit code", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_signatures_name_every_keyword_with_its_type(name: str) -> None:
    parameters = inspect.signature(getattr(dlsim, name)).parameters
    assert set(parameters) >= set(dlsim.runs.keywords(name))
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    assert all(one.annotation is not one.empty for one in parameters.values())


def test_keywords_of_few_values_list_them() -> None:
    parameters = inspect.signature(dlsim.replay).parameters
    for name in ("rounding", "overflow", "subnormals", "clip_rule", "finite_test", "accumulate"):
        assert parameters[name].annotation.startswith("Literal["), name
    emitted = inspect.signature(dlsim.tune).parameters["emit"].annotation
    assert '"torch"' in emitted.replace("'", '"')


def test_editors_complete_keywords() -> None:
    jedi = pytest.importorskip("jedi", reason="needs jedi")
    for code, expected in (
        ("dlsim.replay('x', pol", "policies="),
        ("dlsim.tune('x', emi", "emit="),
        ("dlsim.sweep('x', gri", "grid="),
        ("dlsim.replay('x').verd", "verdict"),
    ):
        completions = jedi.Interpreter(code, [{"dlsim": dlsim}]).complete()
        assert expected in [found.name for found in completions]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"no-such-trace", (dlsim.InputError, "no-such-trace: ")),
        ("a\udc00\ud800b", (dlsim.UsageError, "not valid Unicode")),
        ("a\0b", (dlsim.UsageError, "zero byte")),
        (Path("a\0b"), (dlsim.UsageError, "zero byte")),
        ("x" * 1_000_000, (dlsim.InputError, "File name too long")),
        (["y" * 3000] * 1000, (dlsim.InputError, "File name too long")),
        ({"w": np.ones(3, np.float32)}, (TypeError, "dlsim.check")),
        (np.ones(3, np.float32), (TypeError, "dlsim.check")),
        ([np.ones(3, np.float32)], (TypeError, "dlsim.check")),
    ],
    ids=[
        "bytes",
        "surrogate",
        "zero",
        "zero in Path",
        "long",
        "many",
        "mapping",
        "array",
        "arrays",
    ],
)
def test_what_is_no_path_is_an_error_of_one_line(path: Any, expected: Any) -> None:
    kind, text = expected
    for function in (dlsim.replay, dlsim.info, dlsim.explain):
        with pytest.raises(kind, match=text) as caught:
            function(path)
        assert type(caught.value) is kind and "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b", b"a\0b"])
def test_readers_refuse_what_is_no_path(path: Any) -> None:
    for opener in (dlsim.open_trace, dlsim.open_profile):
        with pytest.raises(dlsim.UsageError, match=r"zero byte|not valid Unicode"):
            opener(path)


def test_a_dtype_is_a_format() -> None:
    named = dlsim.replay(TRACE, formats="fp16", policies="static")
    assert dlsim.replay(TRACE, formats=[np.float16], policies="static") == named
    assert dlsim.formats(np.dtype("float16")) == dlsim.formats("fp16")
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    pair = dlsim.replay(TRACE, formats=[torch.float16, torch.bfloat16], policies="static")
    assert [run["format"] for run in pair["runs"]] == ["fp16", "bf16"]
    with pytest.raises(TypeError, match=r"^replay: formats: expected a text or number, got dtype$"):
        dlsim.replay(TRACE, formats=[torch.int8])


def test_progress_of_short_work_is_not_told() -> None:
    told = []
    with dlsim.runs.progress_to(lambda *one: told.append(one)):
        dlsim.scaler(policy="torch", steps=1)
    assert told == []  # nothing of work that ends at once
