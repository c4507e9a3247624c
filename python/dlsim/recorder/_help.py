# SPDX-License-Identifier: Apache-2.0
"""What help() says of the recorder's arguments."""

from __future__ import annotations

ARGUMENTS = """
    What is recorded:
      model: A torch.nn.Module, or several by name
      path: A directory; one that ends in .profile is a profile
      gradients="*": Parameters by globs over the whole name, compiled regular expressions, which
          are searched for, or a list of both; None for none
      activations="*": Modules whose output gradients are recorded; the model itself is "(root)";
          None for none
      exclude: Parameters and modules to leave out of both
      every, start=0, end: Steps: multiples of `every` from `start` to `end`, both included; by
          default all for a trace; for a profile "auto": all until recording has taken a minute, and
          then as many as the budget allows
      budget=0.03: With every="auto": the share of the training's time that recording may take
      config: A selection in the words of Nvidia-DL-Framework-Inspect (a mapping or the name of a
          YAML file) instead of the arguments before
      forward_every: Steps at which the forward pass is recorded as well (outputs and buffers of
          the chosen modules, and the chosen parameters): multiples of it, 0 for none; by default
          none for a trace, and 0, 1, 2, 4, ... 32 and multiples of 50 for a profile
      shadow=("fp16", "bf16", "cb16"): Formats in which some of these steps are run once more, as
          training in them would (docs/verdict.md); None for none
      inference=False: True records forward passes alone, without gradients, of all steps that are
          selected; call `step` after each batch, no scale is needed
      sample: Record at most this many elements of each tensor, evenly spaced; shares are then
          estimates
      dtype: "float32" or "bfloat16" to convert before storing
      micro_steps=False: Record each backward pass alone: call `micro_step` after it
      copy=True: False reads gradients where they are, for loops that leave them unchanged after
          `step`: no loss scale, clipping or zero_grad(set_to_none=False) (docs/recorder.md)
      on_device=False: True tabulates the tensors of a profile on the GPU that has them, and only
          tables leave it: with the kernel of a build with CUDA, else by PyTorch's own operations
      gradient_of: Takes a parameter and returns its gradient or None, where that is not in `.grad`
    About the training:
      scaler: A GradScaler of torch or dlsim.amp, or a dlsim.LossScaler; `step` takes the scale
          from it unless it is stated
      scheduler: A learning-rate scheduler; a warning is logged if it advances on steps that
          `scaler` skips
      first_step=0: The number of the first call of `step`, such as that of a checkpoint
      description: Texts by name to store in the output, such as model and data
    Where it goes:
      format: "safetensors" or "profile"; by default what the path suggests
      scales: For a profile: also loss scales that are these times a power of two, such as 2e15
      scaled_formats: For a profile: also what tensors lose in formats with scales of their own,
          such as "mxfp8"
      existing="refuse": What happens to an output that is there already: "refuse", "replace" or
          "continue", which keeps the steps before the first that is recorded
      dry_run=False: Write nothing; `report()` says what would be written
      watch: A Watch, a SummaryWriter, a run of W&B or a callable that gets figures during training
    With several processes:
      distributed: How their gradients are related: "reduced", "separate", "sharded" or "stages"
          (docs/recorder-processes.md); detected for DistributedDataParallel and sharded models
      rank, ranks: The rank of this process and the number of ranks, instead of those in
          torch.distributed
    Errors:
      on_error="count": "raise" to raise what would be counted
"""
