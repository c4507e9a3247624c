# SPDX-License-Identifier: Apache-2.0
"""Kinds of mistakes that configurations of strangers brought to light, two cases for each."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlsim
from dlsim.config import Options, read_config

# The kind, the file's name, its text, and what it means ("format policy", with a setting or a part
# of a note) or "refused: " and a part of the line; "not" begins what must not be in it.
CASES = [
    # The options of a launcher are not those of a trainer.
    ("launcher", "a.sh", "accelerate launch --mixed_precision=bf16 train_dreambooth.py "
     "--pretrained_model_name_or_path=m --output_dir=o", "bf16 static"),
    ("launcher", "b.toml", "[m]\npretrained_model_name_or_path = 'm'\n[t]\nmax_grad_norm = 0.5\n"
     "mixed_precision = 'fp16'\n", "fp16 torch"),
    ("launcher alone", "a.sh", "accelerate launch --mixed_precision fp16 --num_processes 2 "
     "src/train.py model=vit", "fp16 torch"),
    ("launcher alone", "b.sh", "accelerate launch --mixed_precision bf16 -m pkg.train --cfg x.yaml",
     "bf16 static"),
    # A trainer whose file leaves the precision open: its own defaults decide, not the launcher's.
    ("launcher's file", "a.sh", "accelerate launch --config_file z.yaml t.py --output_dir o "
     "--model_name_or_path m --save_strategy no", "refused: neither fp16 nor bf16 is given"),
    ("launcher's file", "b.sh", "accelerate launch --config_file z.yaml t.py --fp16 --output_dir o "
     "--per_device_train_batch_size 2", "refused: no such file of Accelerate"),
    # verl: what decides in which release.
    ("verl's type", "a.yaml", "actor_rollout_ref:\n  actor:\n    optim: {lr: 1e-6}\n"
     "    fsdp_config: {mixed_precision: {param_dtype: float16}}\n",
     "fp16 torch growth_interval=400"),
    ("verl's type", "b.sh", "python3 -m verl.trainer.main_ppo "
     "actor_rollout_ref.actor.fsdp_config.dtype=float16", "bf16 static dtype has no effect"),
    ("verl's fork", "a.yaml", "actor_rollout_ref: {actor: {dtype: float16, grad_clip: 0.2}}\n",
     "fp16 torch a key of forks"),
    ("verl's fork", "b.sh", "python -m recipe.main actor_rollout_ref.actor.dtype=bfloat16 "
     "actor_rollout_ref.rollout.n=4", "bf16 static"),
    ("fine-tuning", "a.sh", "torchrun -m verl.trainer.sft_trainer data.train_files=t "
     "engine=megatron engine.dtype=float16", "fp16 megatron initial_scale=32768"),
    ("fine-tuning", "b.yaml", "model: {partial_pretrain: m}\ndata: {train_files: t}\n"
     "optim: {clip_grad: 0.5}\n", "bf16 static"),
    ("verl's engine", "a.sh", "python3 -m verl.trainer.main_ppo model_engine=torchtitan "
     "actor_rollout_ref.actor.optim.lr=1", "refused: verl with torchtitan is not read"),
    ("verl's engine", "b.yaml", "actor_rollout_ref: {actor: {strategy: automodel, optim: {}}}\n",
     "refused: verl with automodel"),
    # Stacks that share names with Hugging Face.
    ("PaddleNLP", "a.json", '{"per_device_train_batch_size": 1, "output_dir": "o", "fp16": true, '
     '"scale_loss": 512, "amp_master_grad": true}', "refused: init_loss_scaling=512"),
    ("PaddleNLP", "b.sh", "python run.py --model_name_or_path m --output_dir o --bf16 1 "
     "--unified_checkpoint 1 --sharding_parallel_degree 2",
     "refused: PaddleNLP, which is not read, expected --policy static --format bf16"),
    ("torchtune", "a.yaml", "optimizer: {_component_: torch.optim.AdamW}\nloss: {_component_: x}\n"
     "dtype: bf16\n", "refused: torchtune, which is not read, expected --policy static"),
    ("torchtune", "b.yaml", "dtype: fp32\ngradient_accumulation_steps: 4\nlog_every_n_steps: 1\n",
     "refused: not a known training configuration"),
    ("ms-swift", "a.sh", "swift sft --model m --train_type full --torch_dtype float32 "
     "--output_dir o --per_device_train_batch_size 1", "refused: --policy torch --format fp16"),
    ("ms-swift", "b.sh", "swift pt --tuner_type full --model m --torch_dtype bfloat16 --deepspeed "
     "zero3", "refused: --policy static --format bf16"),
    # What only running a script would tell.
    ("expressions", "a.sh", "N=$(nproc)\npython t.py --model_name_or_path m --output_dir o --bf16 "
     "--gradient_accumulation_steps $((8 / N))", "bf16 static"),
    ("expressions", "b.sh", "python t.py --model_name_or_path m --output_dir o --fp16 "
     "--max_grad_norm ${CLIP}", "refused: depends on how the script is run"),
    ("branches", "a.sh", "A='--num-layers 2 --hidden-size 4 --fp16'\ncase $X in\n"
     "  a) srun python t.py $A ;;\n  *) python t.py $A ;;\nesac", "fp16 megatron"),
    ("branches", "b.sh", "C=1.0\nif [ $X ]; then C=5.0; fi\n"
     "python t.py --num-layers 2 --hidden-size 4 --bf16 --clip-grad $C",
     "refused: clip_grad: depends on how the script is run"),
    ("here-documents", "a.sh", 'D=ds_$J.json\ncat > $D <<E\n{"fp16": {"enabled": true, '
     '"loss_scale": 64}, "zero_optimization": {"stage": 2}}\nE\npython p.py '
     "--num-layers 2 --hidden-size 8 --deepspeed --deepspeed_config $D",
     "fp16 deepspeed loss_scale=64"),
    ("here-documents", "b.sh", 'cat > x.json <<E\n{"fp16": {"enabled": $FP16}}\nE\npython p.py '
     "--num-layers 2 --hidden-size 8 --deepspeed --deepspeed_config x.json", "refused: 'x.json'"),
    # A key that stacks share decides nothing.
    ("shared keys", "a.json", '{"policy": {"type": "diffusion"}, "dataset": {"repo_id": "x"}, '
     '"batch_size": 8}', "refused: not unknown key"),
    ("shared keys", "b.yaml", "trainer: {dtype: float16, max_num_steps: 9}\nmodel: {name: x}\n",
     "refused: not no table init"),
    ("somebody's trainer", "a.yaml", "trainer:\n  _target_: my.Trainer\n  max_epochs: 4\n"
     "  accelerator: gpu\n  precision: 32\n", "refused: not computes"),
    ("somebody's trainer", "b.yaml", "trainer:\n  max_epochs: 4\n  devices: 1\n"
     "  precision: float16\n  ema_decay: 0.9\n", "refused: not Lightning"),
    ("one mark", "a.yaml", "base_model: m\nadapter: lora\nlearning_rate: 1e-4\n",
     "refused: not axolotl"),
    ("one mark", "b.yaml", "precision: amp_fp16\nmax_duration: 10ba\nmodel: {d_model: 1}\n",
     "refused: not Composer"),
    ("a Flax program", "a.sh", "python run_clm_flax.py --model_name_or_path m --output_dir o "
     "--dtype float16 --per_device_train_batch_size 4", "refused: not a known"),
    ("a Flax program", "b.sh", "python t.py --per_device_train_batch_size 4 --model_name_or_path m "
     "--tensor_parallel_degree 4 --fp16", "refused: not PaddleNLP"),
    # DeepSpeed's file that nobody names, and that is inside of another.
    ("deepspeed switch", "a.sh", "deepspeed train.py --deepspeed --model_name_or_path m "
     "--output_dir o --bf16", "refused: not got true"),
    ("deepspeed switch", "b.sh", "deepspeed main.py --deepspeed --dtype bf16 --num_train_epochs 1 "
     "--model_name_or_path m", "refused: --policy deepspeed"),
    ("nested", "a.yaml deepspeed", "train: {ds: {fp16: {enabled: true}, zero_optimization: "
     "{stage: 1}}}\n", "fp16 deepspeed"),
    ("nested", "b.yaml deepspeed", "model: {a: 1}\noptimizer: {type: AdamW}\n",
     "refused: not a configuration of DeepSpeed"),
    ("next to fp16", "a.json", '{"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}, '
     '"initial_scale_power": 8}', "fp16 deepspeed initial_scale_power has no effect"),
    ("next to fp16", "b.yaml", "zero_optimization: {stage: 1}\nfp16: {enabled: true}\n"
     "hysteresis: 4\n", "fp16 deepspeed delayed_shift=2"),
    ("MindFormers", "a.yaml", "run_mode: train\nrunner_wrapper:\n  scale_sense: {type: "
     "DynamicLossScaleUpdateCell, loss_scale_value: 4096, scale_window: 50}\nmodel: {model_config: "
     "{compute_dtype: float16}}\n",
     "refused: mindspore-cell --format fp16 --set loss_scale_value=4096 --set scale_window=50"),
    ("MindFormers", "b.yaml", "runner_config: {epochs: 1}\nrunner_wrapper: {scale_sense: 1.0}\n"
     "model: {model_config: {compute_dtype: bfloat16}}\n",
     "refused: --policy static --format bf16 --set loss_scale=1.0"),
    ("Python", "a.py", "from mmengine.config import read_base\nfp16 = dict(loss_scale=512.)\n",
     "refused: a configuration in Python"),
    ("Python", "b.cfg", "_base_ = ['x.py']\noptim_wrapper = dict(type='AmpOptimWrapper')\n",
     "refused: a configuration in Python"),
    # What another file, a function's caller or a comment would decide.
    ("sourced", "a.sh", "P=--fp16\nsource args.sh\npython t.py --model_name_or_path m "
     "--output_dir o "
     "$P", "refused: neither fp16 nor bf16 is given"),
    ("sourced", "b.sh", "source venv/bin/activate\nP=--bf16\n: '\npython t.py --fp16 --bf16\n'\n"
     "python t.py --model_name_or_path m --output_dir o $P", "bf16 static"),
    ("functions", "a.sh", 'run() {\n  fairseq-train d --criterion c --fp16 --update-freq 2 '
     '"$@"\n}\n'
     "run --update-freq 16\n", "refused: 'update_freq' depends on how the script is run"),
    ("functions", "b.sh", "run() {\n  fairseq-train d --criterion c --fp16 --update-freq 2\n"
     "}\nrun\n",
     "fp16 fairseq scale_window=8192"),
    ("line ends", "a.sh", "python t.py --num-layers 2 --hidden-size 4 \\\n # --bf16 \\\n --fp16\n",
     "refused: a command that begins with an option"),
    ("line ends", "b.txt", "--num-layers 2\n--hidden-size 4\n--fp16\n", "fp16 megatron"),
    # A type that a program loads is not that of a training.
    ("types", "a.sh", "swift rlhf --rlhf_type grpo --model m --torch_dtype float16 --output_dir o "
     "--per_device_train_batch_size 1", "refused: ms-swift, which is not read, expected "
     "--policy torch"),
    ("types", "b.sh", "python sample.py --model_name_or_path m --output_dir o --dtype float16",
     "refused: neither fp16 nor bf16 is given"),
    ("generation", "a.sh", "python3 -m verl.trainer.main_generation actor_rollout_ref.model.path=m "
     "actor_rollout_ref.rollout.n=4 data.path=d", "refused: not verl with"),
    ("generation", "b.yaml", "trainer: {devices: 1, accelerator: gpu, precision: 16}\n"
     "inference: {greedy: true}\n", "refused: not Lightning"),
    ("no precision", "a.yaml", "common: {log_format: json}\noptimization: {max_update: 9}\n"
     "task: {data: x}\n", "refused: neither fp16 nor bf16 is given"),
    ("no precision", "b.sh", "python t.py --num-layers 2 --hidden-size 256 --seed 3",
     "refused: neither fp16 nor bf16 is given"),
    # Options that a file has as keys.
    ("option keys", "a.json", '{"--mixed_precision": "bf16", '
     '"--pretrained_model_name_or_path": "m"}',
     "bf16 static"),
    ("option keys", "b.json", '{"--model_name_or_path": "m", "--output_dir": "o", "--fp16": true}',
     "fp16 torch"),
    # A stack that is named, in a file that has nothing of it.
    ("named", "a.yaml fairseq", "lr: 1\n", "refused: no key of fairseq"),
    ("named", "b.yaml megatron", "optimizer: adam\n", "refused: no key of megatron"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "meant"), [c[1:] for c in CASES], ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_a_kind_of_mistake(tmp_path: Path, name: str, text: str, meant: str) -> None:
    file, _, kind = name.partition(" ")
    path = tmp_path / file
    path.write_text(text)
    if meant.startswith("refused: "):
        with pytest.raises(dlsim.UsageError) as refused:
            read_config(str(path), Options(kind=kind))
        line, part = str(refused.value), meant.removeprefix("refused: ")
        assert "\n" not in line and "\x01" not in line
        if part.startswith("not ") and not part.startswith("not a "):
            assert part.removeprefix("not ") not in line
        else:
            assert part in line
        return
    found = read_config(str(path), Options(kind=kind))
    format_name, policy, *more = meant.split(maxsplit=2)
    assert found.formats == [format_name]
    assert [one.name for one in found.policies] == [policy]
    said = " ".join([*found.policies[0].settings, *found.notes])
    assert all(part in said for part in more)
