# SPDX-License-Identifier: Apache-2.0
"""`dlsim replay` of a training's gradients tells what GradScaler did in that training."""

import copy
import json
import subprocess

import pytest
import torch
from running import DLSIM

from dlsim import amp
from dlsim.traces._writer import TraceWriter

_FORMATS = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cb16"}
_STEPS = 40
_MICRO_STEPS = 2


def _batch(generator, step):
    inputs = torch.randn(8, 6, generator=generator)
    # Spikes that overflow fp16 alone, cb16 too, and the norm in bf16.
    return inputs * {9: 2e2, 10: 2e2, 20: 1e6, 30: 1e20}.get(step, 1.0)


def _train(half_dtype, quantize_first, directory):
    """Trains with the scaler, records unscaled gradients, and returns what the scaler did."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    # Weights that see the inputs directly, so that spikes reach the gradients.
    model.add_module("out", torch.nn.Linear(3, 1))
    direct = torch.nn.Linear(6, 1)
    parameters = {**dict(model.named_parameters()), "direct.weight": direct.weight}
    optimizer = torch.optim.Adam(parameters.values(), lr=0.01)
    scaler = amp.GradScaler("dynamic", steps_per_increase=4, half_dtype=half_dtype)
    if quantize_first:
        scaler.quantize_first(optimizer)
    generator = torch.Generator().manual_seed(5)
    live = []
    with TraceWriter(directory, {"model": "test"}) as trace:
        for step in range(_STEPS):
            optimizer.zero_grad()
            scale = float(scaler.get_scale())
            for micro in range(_MICRO_STEPS):
                inputs = _batch(generator, step)

                def loss_of(model, weight, inputs=inputs):
                    return (model(inputs) + inputs @ weight.T).mean() / _MICRO_STEPS

                twin, twin_weight = copy.deepcopy(model), direct.weight.detach().clone()
                twin_weight.requires_grad_()
                names = dict(twin.named_parameters(), **{"direct.weight": twin_weight})
                for parameter in names.values():
                    parameter.grad = None
                loss_of(twin, twin_weight).backward()
                recorded = {f"{name}.grad": p.grad for name, p in names.items()}
                trace.write(step, recorded, {}, micro=micro)
                scaler.scale(loss_of(model, direct.weight)).backward()
            scaler.step(optimizer)
            norm, finite = float(scaler.global_norm), bool(scaler.isfinite)
            scaler.update()
            live.append((scale, float(scaler.get_scale()), not finite, norm))
    return live, scaler


def _replay(half_dtype, quantize_first, directory):
    command = [*DLSIM, "replay", directory, "--quiet", "--json", "-"]
    command += ["--policy", "cerebras-2.10", "--format", _FORMATS[half_dtype]]
    command += ["--set", "steps_per_increase=4", "--details"]
    command += ["--max-gradient-norm", "1e30"]  # looks at the norm of what is converted
    command += [] if quantize_first else ["--accumulate", "sum-first"]
    result = subprocess.run(command, capture_output=True, check=True)
    (run,) = json.loads(result.stdout)["runs"]
    return run


@pytest.mark.parametrize("quantize_first", [False, True])
@pytest.mark.parametrize("half_dtype", _FORMATS)
def test_replay_repeats_the_training_step_for_step(half_dtype, quantize_first, tmp_path):
    live, scaler = _train(half_dtype, quantize_first, tmp_path / "trace")
    run = _replay(half_dtype, quantize_first, tmp_path / "trace")
    replayed = [(s["scale"], s["next_scale"], s["skipped"]) for s in run["steps"]]
    assert replayed == [step[:3] for step in live]
    for step, (*_, skipped, norm) in zip(run["steps"], live, strict=True):
        if not skipped:
            assert torch.tensor(step["converted_grad_norm"], dtype=torch.float32).item() == norm
    assert run["summary"]["skipped_steps"] == int(scaler.get_num_skipped_steps()) > 0
