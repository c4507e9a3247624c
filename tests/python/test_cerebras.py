# SPDX-License-Identifier: Apache-2.0
"""Scripts written for cerebras.pytorch run unedited, with what dlsim.amp emulates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dlsim import amp, cerebras

# Before the loops of Cerebras' pages: what they leave to the reader.
SETTING = """
import json, sys
import torch
import cerebras.pytorch as cstorch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
loss_fn = torch.nn.MSELoss()
BATCHES = [(x, x.sum(1, keepdim=True) * (1e18 if i == 3 else 1))
           for i, x in enumerate(torch.randn(6, 8, 4))]
seen = []
"""
END = """
print(json.dumps({"seen": seen, "parameters": [p.tolist() for p in model.parameters()]}))
"""

# The loop of "Writing a Custom Training Loop" and "Step Closures" with the calls of "Gradient
# Scaling" (training-docs.cerebras.ai, release 2.10).
WITH_CALLS = """
backend = cstorch.backend("CSX", cluster_config=cstorch.distributed.ClusterConfig(num_csx=1))
compiled_model = cstorch.compile(model, backend)
optimizer = cstorch.optim.SGD(model.parameters(), lr=0.05)
cstorch.amp.set_half_dtype("cbfloat16")
grad_scaler = cstorch.amp.GradScaler(loss_scale="dynamic")

@cstorch.step_closure
def print_loss(loss):
    seen.append([f"{loss}", float(grad_scaler.get_scale())])
    rate, global_rate = executor.profiler.rate(), executor.profiler.global_rate()
    assert (rate > 0 and global_rate > 0) == (len(seen) > 1)

@cstorch.checkpoint_closure
def save_checkpoint(step):
    cstorch.save({"model": model.state_dict()}, f"checkpoint_{step}.mdl")

@cstorch.trace
def training_step(inputs, targets):
    outputs = compiled_model(inputs)
    loss = loss_fn(outputs, targets)

    optimizer.zero_grad()
    # Scale the loss before calling the backward pass
    grad_scaler.scale(loss).backward()

    # Unscales the gradients of the optimizer's assigned params in-place
    # to facilitate things like gradient clipping
    grad_scaler.unscale_(optimizer)

    # (Optional) Global gradient clipping
    torch.nn.utils.clip_grad_norm_(
        model.parameters(),
        1.0,  # max gradient norm
    )

    # Step the optimizer using the grad scaler
    grad_scaler.step(optimizer)

    # update the grad scaler once all optimizers have been stepped
    grad_scaler.update()

    return loss

dataloader = cstorch.utils.data.DataLoader(lambda: BATCHES)
executor = cstorch.utils.data.DataExecutor(dataloader, num_steps=8, checkpoint_steps=3)

for step, (inputs, targets) in enumerate(executor, start=1):
    loss = training_step(inputs, targets)
    print_loss(loss)
    save_checkpoint(step)
"""
WITH_HELPER = """
compiled_model = cstorch.compile(model, backend="CSX")
optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01)
grad_scaler = cstorch.amp.GradScaler(loss_scale="dynamic")

@cstorch.trace
def training_step(inputs, targets):
    loss = loss_fn(compiled_model(inputs), targets)
    cstorch.amp.optimizer_step(
        loss,
        optimizer,
        grad_scaler,
        max_gradient_norm=1.0,  # optionally perform gradient clipping by norm
    )
    return loss

dataloader = cstorch.utils.data.DataLoader(lambda: BATCHES)
executor = cstorch.utils.data.DataExecutor(dataloader, num_steps=8)
for inputs, targets in executor:
    loss = training_step(inputs, targets)
    seen.append([f"{loss}", float(grad_scaler.get_scale())])
"""


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess:
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "dlsim.cerebras", path, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def by_hand(*, helper: bool) -> dict:
    """The same training in the words of dlsim.amp."""
    names: dict = {}
    setting = SETTING.replace("import cerebras.pytorch as cstorch", "")
    exec(setting, names)
    half_dtype = "float16" if helper else "cbfloat16"
    model, batches, seen = names["model"], names["BATCHES"], names["seen"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if helper:
        optimizer = cerebras.AdamW(model.parameters(), lr=0.01)
    scaler = amp.GradScaler("dynamic", half_dtype=half_dtype)
    for inputs, targets in [*batches, *batches[:2]]:
        loss = names["loss_fn"](model(inputs), targets)
        optimizer.zero_grad()
        amp.optimizer_step(loss, optimizer, scaler, max_gradient_norm=1.0)
        seen.append([f"{loss}", float(scaler.get_scale())])
    return {"seen": seen, "parameters": [p.tolist() for p in model.parameters()]}


@pytest.mark.parametrize("loop", [WITH_CALLS, WITH_HELPER])
def test_published_loops_run_word_for_word(tmp_path: Path, loop: str) -> None:
    done = run(tmp_path, SETTING + loop + END)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == by_hand(helper=loop is WITH_HELPER)
    scales = [scale for _, scale in found["seen"]]
    assert len(scales) == 8 and scales[3] < scales[2]  # the fourth batch overflows
    saved = sorted(path.name for path in tmp_path.glob("*.mdl"))
    expected = ["checkpoint_3.mdl", "checkpoint_6.mdl", "checkpoint_8.mdl"]
    assert saved == (expected if loop is WITH_CALLS else [])


def test_imports_of_other_forms_find_the_same(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import sys\n"
        "import cerebras_pytorch as old\n"
        "import cerebras.pytorch as cstorch\n"
        "from cerebras.pytorch.amp import GradScaler\n"
        "from cerebras.pytorch.utils.data import DataExecutor, DataLoader\n"
        "from cerebras.modelzoo.trainer.callbacks import MixedPrecision\n"
        "import dlsim.amp\n"
        "assert old.amp.GradScaler is cstorch.amp.GradScaler is GradScaler\n"
        "assert GradScaler is dlsim.amp.GradScaler\n"
        "assert MixedPrecision is dlsim.amp.MixedPrecision and not cstorch.use_cs()\n"
        "assert cstorch.backend('csx').is_csx and cstorch.use_cs()\n"
        "assert __name__ == '__main__' and sys.argv[1:] == ['--steps', '3'], sys.argv\n",
        "--steps",
        "3",
    )
    assert done.returncode == 0, done.stderr


LACKING = [
    ("cstorch.sparse.Group", "cerebras.pytorch.sparse: not emulated by dlsim, expected one of"),
    ("cstorch.amp.half_function(1)", "cerebras.pytorch.amp.half_function: not emulated by dl"),
    (
        "import cerebras.pytorch.nn.functional",
        "ModuleNotFoundError: No module named 'cerebras.pytorch.nn'",
    ),
    ("from cerebras.pytorch import metrics", "ImportError: cannot import name 'metrics'"),
    ("cstorch.optim.Lion([])", "cerebras.pytorch.optim.Lion: not emulated by dlsim, expected"),
    ("from cerebras.modelzoo.trainer import Trainer", "ImportError: cannot import name 'Trainer'"),
    ("cstorch.backend('TPU')", "backend: unknown, expected CSX, CPU or GPU, got 'TPU'"),
    ("cstorch.checkpoint_closure(print)()", "print: called outside of a loop over a DataExec"),
    (
        "next(iter(cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(list), 3)))",
        "RuntimeError: DataExecutor: the dataloader gave no batch",
    ),
]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    lines = [line for line, _ in LACKING]
    done = run(
        tmp_path,
        "import cerebras.pytorch as cstorch\n"
        f"for line in {lines!r}:\n"
        "    try:\n"
        "        exec(line)\n"
        "    except Exception as error:\n"
        "        print(f'{type(error).__name__}: {error}')\n"
        "cstorch.nn.Linear\n",
    )
    for found, (_, message) in zip(done.stdout.splitlines(), LACKING, strict=True):
        assert message in found
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("AttributeError: cerebras.pytorch.nn: not emulated by dlsim, expected")


def test_a_missing_script_is_a_usage_error(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "dlsim.cerebras", "no.py"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "dlsim.cerebras: no.py: no such file, expected a script\n"


def test_adamw_is_that_of_torch_but_for_the_place_of_epsilon() -> None:
    parameters = {}
    for kind, make in (("torch", torch.optim.AdamW), ("here", cerebras.AdamW)):
        torch.manual_seed(1)
        values = torch.randn(50, dtype=torch.float64, requires_grad=True)
        optimizer = make([values], lr=0.1, eps=0.0, weight_decay=0.1)
        for _ in range(20):
            values.grad = torch.randn(50, dtype=torch.float64)
            optimizer.step()
        parameters[kind] = values.detach()
    torch.testing.assert_close(parameters["here"], parameters["torch"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "decay"), [("AdamW", 0.5), ("Adam", 0.5)])
def test_adam_adds_epsilon_before_the_correction(kind: str, decay: float) -> None:
    value = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    optimizer = getattr(cerebras, kind)([value], lr=0.1, eps=0.25, weight_decay=decay)
    value.grad = torch.tensor([3.0], dtype=torch.float64)
    optimizer.step()
    gradient = 3.0 + (decay * 2.0 if kind == "Adam" else 0.0)
    update = 0.1 * gradient / ((0.001 * gradient**2) ** 0.5 + 0.25) * 0.001**0.5 / 0.1
    expected = 2.0 - 0.1 * (update + (decay * 2.0 if kind == "AdamW" else 0.0))
    assert value.item() == pytest.approx(expected, rel=1e-12)
