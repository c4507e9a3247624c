# SPDX-License-Identifier: Apache-2.0
"""Measures what recording costs a training step, with steps of all modes interleaved.

    PYTHONPATH=python python3 bench/recorder_overhead.py [--rounds 15] [--batch 1] [--threads 1]

Trains a transformer of 10.7 million parameters on text, on the CPU. Each round has one step without
recording and one of each mode, so that they see the same machine. Printed are minima of processor
time, which other programs disturb least: of the training's own thread in a step without recording,
and, of each mode, what recording adds to that thread (hooks included) and what other threads do.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

import dlsim

TEXT = (Path(__file__).parents[1] / "LICENSE").read_bytes()
GRADIENTS = {"forward_every": 0}
OFF = {"activations": None, **GRADIENTS}
BORROWED = {"copy": False}
LINEAR = {"activations": ["*.linear1", "*.linear2"], **GRADIENTS}
MODES: dict[str, dict] = {
    "none": {},
    "trace": {"path": "trace"},
    "trace, copy=False": {**BORROWED, "path": "lent"},
    "trace without activations": {**OFF, "path": "parameters"},
    "trace without activations, copy=False": {**OFF, **BORROWED, "path": "lent-parameters"},
    "trace without activations, bfloat16": {**OFF, "path": "bfloat16", "dtype": "bfloat16"},
    "trace without activations, sample of 65536": {**OFF, "path": "sample", "sample": 65536},
    "trace with activations of 8 modules": {**LINEAR, "path": "linear"},
    "profile": {**GRADIENTS, "path": "profile.dlprof"},
    "profile, copy=False": {**GRADIENTS, **BORROWED, "path": "lent.dlprof"},
    "profile with forward pass": {"forward_every": 1, "ops": False, "path": "forward.dlprof"},
    "profile with forward pass and operations": {"forward_every": 1, "path": "ops.dlprof"},
    "profile without activations": {**OFF, "path": "parameters.dlprof"},
    "profile without activations, copy=False": {
        **OFF,
        **BORROWED,
        "path": "lent-parameters.dlprof",
    },
    "profile without activations, fp16 rne only": {
        **OFF,
        "path": "fp16.dlprof",
        "ladder": {"formats": ["fp16"], "roundings": ["rne"], "subnormals": "keep"},
    },
    "profile with activations of 8 modules": {**LINEAR, "path": "linear.dlprof"},
}


class LanguageModel(nn.Module):
    """Predicts bytes: 4 layers, 468 wide, 10.7 million parameters."""

    def __init__(self, width: int = 468, context: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(width, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits of the next byte."""
        return self.head(self.layers(self.embedding(x) + self.position))


def batch(size: int, context: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns windows of the text as bytes, and the byte after each."""
    data = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    windows = torch.stack(
        [data[i : i + context + 1] for i in torch.randint(0, len(data) - context - 1, (size,))]
    )
    return windows[:, :-1], windows[:, 1:]


def recorders(model: nn.Module, folder: Path) -> dict[str, dlsim.Recorder]:
    """Returns a recorder for each mode, each of which selects one step in a round."""
    found = {}
    for i, (mode, options) in enumerate(MODES.items()):
        if options:
            arguments = {key: value for key, value in options.items() if key != "path"}
            found[mode] = dlsim.Recorder(
                model,
                folder / options["path"],
                every=len(MODES),
                first_step=len(MODES) - i,
                start=len(MODES),
                **arguments,
            )
    return found


@dataclass
class Times:
    """Seconds of processor time of the steps of one mode."""

    step: list[float] = field(default_factory=list)  # of the training's thread, all in all
    recording: list[float] = field(default_factory=list)  # of it in the recorder's calls
    others: list[float] = field(default_factory=list)  # of all other threads


def measure(
    rounds: int, size: int, recording: dict[str, dlsim.Recorder], model: nn.Module
) -> list[Times]:
    """Trains, and returns the times of each mode."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    times = [Times() for _ in MODES]
    for step in range((rounds + 1) * len(MODES)):
        x, y = batch(size)
        began, used = time.thread_time(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        before = time.thread_time()
        for recorder in recording.values():
            recorder.step(loss=loss, scale=1.0)
        after = time.thread_time()
        optimizer.step()
        ended = time.thread_time()
        for recorder in recording.values():
            recorder.report()  # waits
        if step >= len(MODES):  # the first round warms up
            of_mode = times[step % len(MODES)]
            of_mode.step.append(ended - began)
            of_mode.recording.append(after - before)
            of_mode.others.append(time.process_time() - used - (time.thread_time() - began))
    return times


def print_table(times: list[Times], recording: dict[str, dlsim.Recorder]) -> None:
    """Prints what each mode adds to a step."""
    alone = min(times[0].step)
    print(f"a step without recording: {alone * 1e3:.3g} ms\n")
    print("| mode | calls, ms | added to the thread, % of a step | other threads, ms | bytes |")
    print("|---|---|---|---|---|")
    for mode, of_mode in zip(MODES, times, strict=True):
        added = (min(of_mode.step) - alone) / alone
        report = recording[mode].report() if mode in recording else None
        size = f"{report.bytes / report.steps:,.0f}" if report else "0"
        print(
            f"| {mode} | {min(of_mode.recording) * 1e3:.3g} | {added:.1%} | "
            f"{min(of_mode.others) * 1e3:.3g} | {size} |"
        )


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = LanguageModel()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        recording = recorders(model, Path(folder))
        times = measure(arguments.rounds, arguments.batch, recording, model)
        print(f"{parameters} parameters in {len(list(model.parameters()))} tensors, ", end="")
        print(f"{arguments.rounds} steps of each mode; ", end="")
        print_table(times, recording)
        for recorder in recording.values():
            recorder.close()
            assert recorder.errors == 0, recorder.report()


if __name__ == "__main__":
    main()
