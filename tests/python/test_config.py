# SPDX-License-Identifier: Apache-2.0
"""Training configurations: bad files, the engine's part, and what the pages say of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random

import pytest
from running import DLSIM

import dlsim
from dlsim.config import Options, read_config, resolved
from dlsim.config._stacks import DIALECTS

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
TRACE = DATA / "traces/reg-diabetes-cut"
ZERO = "zero_optimization: {stage: 1}\n"
MANY = 200_000

# What nobody means: each gives one line, soon, and without much memory.
HOSTILE = {
    "deep.yaml": "[" * MANY,
    "keys.yaml": "{a: " * MANY,
    "lists.yaml": "- " * MANY,
    "many.yaml": "a: [" + "1," * MANY + "]",
    "bomb.yaml": "a0: &a0 [1]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20)),
    "merges.yaml": "a: &a {x: 1}\n" + "".join(f"b{i}: {{<<: [*a, *a]}}\n" for i in range(9000)),
    "cycle.yaml": "a: &a [*a]",
    "merged-cycle.yaml": "a: &a\n  <<: *a\n",
    "object.yaml": "fp16: {enabled: !!python/object/apply:os.abort []}\n" + ZERO,
    "documents.yaml": "a: 1\n---\nb: 2\n",
    "nul.yaml": "a: \0",
    "integer.yaml": "fp16: {enabled: true, loss_scale: " + "9" * MANY + "}\n" + ZERO,
    "hexadecimal.yaml": "fp16: {enabled: true, loss_scale: 0x" + "9" * MANY + "}\n" + ZERO,
    "twice.yaml": "fp16: {enabled: true, enabled: false}\n" + ZERO,
    "deep.json": '{"a":' * MANY,
    "list.json": "[1]",
    "escapes.json": '{"' + '\\"' * MANY,
    "comments.json": "{" + "/*" * MANY,
    "commas.json": "{" + ", " * MANY,
    "nan.json": '{"fp16": {"enabled": true, "loss_scale": NaN}, "zero_optimization": {}}',
    "integer.json": '{"fp16": {"enabled": true, "loss_scale": ' + "9" * MANY + '}, "amp": {}}',
    "twice.json": '{"zero_optimization": {}, "fp16": {"enabled": 1, "enabled": 0}}',
    "deep.toml": "a = " + "[" * MANY,
    "dots.toml": "a." * MANY + "b = 1",
    "spaced-dots.toml": "a . " * MANY + "b = 1",
    "integer.toml": "a = " + "9" * MANY,
    "large.sh": "python t.py --fp16 " + "x " * MANY,
    "quotes.sh": "python " + '"' * 100_000,
    "nested.sh": "x " + "${a:-" * 20_000,
    "branches.sh": "if x; then\n" * 10_000,
    "growing.sh": "A=xxxxxxxx\n" + "A=$A$A\n" * 40 + "python t.py --fp16 $A",
    "arrays.sh": "A=(a b)\n" + "A=(${A[@]} ${A[@]})\n" * 60 + "python t.py --fp16 ${A[@]}",
    "words.sh": 'A="' + "x " * 20_000 + '"\npython ' + "$A " * 20_000,
    "here.sh": "cat <<E\n" + "$" * 100_000,
    "bytes.yaml": b"a: \xff\xfe",
    "empty.json": "",
    "nothing.sh": "echo nothing",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line(tmp_path: Path, name: str) -> None:
    path, text = tmp_path / name, HOSTILE[name]
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((dlsim.UsageError, dlsim.InputError)) as refused:
        read_config(str(path))
    line = str(refused.value)
    assert line.startswith(str(path)) and "\n" not in line and len(line) < 1000


def test_mutations_are_read_or_refused(tmp_path: Path) -> None:
    texts = [path.read_text() for path in sorted((DATA / "config").glob("*.cases"))]
    texts = [case.split("\n=> ")[0].partition("\n")[2] for t in texts for case in t.split("\n##")]
    parts = (
        "null [] {} auto -1 1e999 ${a} $1 &a *a !!float <<: \n : , \" ' { $( ` if fi -- = .".split(
            " "
        )
    )
    random = Random(20261129)
    path = tmp_path / "f"
    for _ in range(1500):
        text = random.choice(texts)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(text) + 1)
            end = min(len(text), at + random.choice([0, 0, 1, 8]))
            text = text[:at] + random.choice(parts) + text[end:]
        path.write_text(text)
        try:
            read_config(str(path))
        except (dlsim.UsageError, dlsim.InputError) as error:
            assert "\n" not in str(error), text


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*DLSIM, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"fp16": {"enabled": 3}, "zero_optimization": {}}')
    cases = [(tmp_path / "a.json", 2), (tmp_path / "none.json", 3), (tmp_path, 3)]
    for path, code in cases:
        done = run("replay", TRACE, "--config", path, "--quiet")
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
        assert done.stderr.startswith(f"dlsim replay: {path}")


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(dlsim.InputError, match="too large"):
        read_config(str(tmp_path / "a.yaml"))
    with pytest.raises(dlsim.InputError, match="too large"):
        read_config("/dev/zero")


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.yaml", "zero_optimization:\n  stage: 1\nfp16:\n  enabled: 3\n", ":4: fp16.enabled"),
        ("a.json", '{"zero_optimization": {},\n "fp16": {\n"enabled": 3}}', ":3: fp16.enabled"),
        ("b.json", '{"bf16": {"enabled": false},\n "fp16": {"enabled": 3}}', ": fp16.enabled"),
        ("a.toml", "[zero_optimization]\n\n[fp16]\n\nenabled = 3\n", ":5: fp16.enabled"),
        ("a.sh", "# x\npython t.py --num-layers 2 \\\n  --hidden-size 4 --loss-scale x --fp16",
         ":3: loss_scale"),
        ("b.yaml", "a: 1\n b: 2\n", ":2: bad YAML"),
        ("c.json", '{"a": 1\n "b"', ":2: bad JSON"),
        ("b.toml", "a = 1\nb = \n", ":2: bad TOML"),
    ],
)  # fmt: skip
def test_an_error_names_the_line(tmp_path: Path, name: str, text: str, place: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(dlsim.UsageError) as refused:
        read_config(str(tmp_path / name))
    assert str(refused.value).startswith(str(tmp_path / name) + place)


def test_yaml_as_its_users_mean_it(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "base: &base {min_loss_scale: 0.5, max_loss_scale: 1e3}\ntrainer:\n  init:\n"
        "    precision:\n      <<: *base\n      fp16_type: 'float16'\n"
        "      loss_scaling_factor: dynamic\n      initial_loss_scale: 1_0e1\n"
        "      max_loss_scale: 0x400\n"
    )
    (policy,) = read_config(str(path)).policies
    wanted = ["init_scale=10e1", "min_loss_scale=0.5", "max_loss_scale=0x400"]
    assert policy.settings[1:] == wanted


def test_the_engine_takes_what_python_reads(tmp_path: Path) -> None:
    path = DATA / "config/torch_scaler.toml"
    words = resolved(["scaler", "--config", str(path), "--steps", "3"])
    assert words[:-1] == ["scaler", "--config", str(path), "--steps", "3"]
    (meant,) = json.loads(words[-1].removeprefix("--configured="))
    assert (meant["path"], meant["kind"]) == (str(path), "torch GradScaler")
    assert resolved(["scaler", "--", "--config"]) == ["scaler", "--", "--config"]
    found = dlsim.replay(TRACE, config=str(path), quiet=True)
    assert found["options"]["config"]["file"] == str(path)
    assert "configured" not in " ".join(found.command)
    with pytest.raises(dlsim.UsageError, match="needs --config"):
        dlsim.replay(TRACE, config_kind="torch")
    with pytest.raises(dlsim.UsageError, match="did you mean 'torch'"):
        dlsim.replay(TRACE, config=str(path), config_kind="trch")


@pytest.mark.parametrize(
    ("stack", "format_name", "file", "policy"),
    [
        ("zoo", "fp16", "a.yaml", "cerebras-2.10"),
        ("zoo", "cb16", "b.yaml", "cerebras-2.10"),
        ("zoo", "bf16", "c.yaml", "static"),
        ("deepspeed", "fp16", "d.json", "deepspeed"),
        ("deepspeed", "bf16", "e.json", "deepspeed-fp16-optimizer"),
    ],
)
def test_what_tune_emits_is_read(
    tmp_path: Path, stack: str, format_name: str, file: str, policy: str
) -> None:
    trace = DATA / "traces/cnn-digits"
    tuned = dlsim.tune(trace, formats=format_name, emit=stack)
    text = tuned.report
    if policy == "deepspeed":  # with ZeRO in the user's own file
        text = text.replace("{", '{"zero_optimization": {"stage": 3}, ', 1)
    (tmp_path / file).write_text(text)
    (one,) = dlsim.replay(trace, config=str(tmp_path / file), quiet=True)["runs"]
    assert (one["format"], one["policy"]) == (format_name, policy)
    if format_name != "bf16":  # which no stack scales
        wanted = tuned["formats"][0]["recommended"]["params"]
        assert {key: one["params"][key] for key in wanted} == wanted


def test_runs_of_a_script_must_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    line = "python t.py --num-layers 2 --hidden-size 4 --train-iters 9 {}\n"
    path.write_text(line.format("--bf16") + "echo --fp16\n" + line.format("--bf16 --seed 4"))
    assert read_config(str(path)).formats == ["bf16"]
    path.write_text(line.format("--bf16") + line.format("--fp16"))
    with pytest.raises(dlsim.UsageError, match=":2: another run than that of line 1"):
        read_config(str(path))


def test_versions_and_backends() -> None:
    path = str(DATA / "config/model_zoo_gpt3.yaml")
    assert read_config(path, Options(backend="gpu")).formats == ["bf16"]
    for text in ("0.x", "1.2.3.4", "1."):
        with pytest.raises(dlsim.UsageError, match="bad version"):
            resolved(["scaler", "--config", path, "--config-version", text])


def test_the_page_lists_the_dialects() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    listed = [f"| `{dialect.name}` | {dialect.compared} |" for dialect in DIALECTS]
    assert [row for row in listed if row not in page] == []
