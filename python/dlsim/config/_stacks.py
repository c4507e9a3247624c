# SPDX-License-Identifier: Apache-2.0
"""Which stack a file is of: two marks of its own decide it, a key that stacks share never does.

A row has the marks of a stack. Those that dlsim reads come first; files of the others are refused
by name, with the options that do the same as far as the file tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from . import _cerebras, _deepspeed, _megatron, _pytorch
from ._dlsim import KEYS as _DLSIM_KEYS
from ._dlsim import read_dlsim
from ._meaning import Config, Options
from ._reading import Node, Number, Source, Table, one_of, printable, quoted, refuse, suggestion


@dataclass(frozen=True)
class Dialect:
    """A stack whose files are read."""

    name: str  # of --config-kind
    compared: str  # the release that it was compared with
    read: Callable[[Source, Options], Config]
    marks: str  # as Source.marks has them; "|" joins those of which one counts
    keys: str = ""  # a file that has one mark, and else only these keys, is of it, too
    fits: Callable[[Source], bool] | None = None  # what else must hold
    needs: int = 2  # marks
    has_backend: bool = False
    flat: bool = False  # its tables have no meaning: the keys in them are those of the file


@dataclass(frozen=True)
class Foreign:
    """A stack whose files are not read."""

    name: str
    policy: str  # of a run in fp16
    marks: str
    precision: str = ""  # paths of the values that tell the format
    settings: str = ""  # PATH:PARAMETER of numbers that are parameters of the policy


def _is_verl(source: Source) -> bool:
    """What its trainers share with others, such as data.train_files, is not enough."""
    own = "actor_rollout_ref.actor model.partial_pretrain engine.strategy @main_ppo @sft_trainer"
    return bool(source.marks(own.split()))


def _is_run(source: Source) -> bool:
    """Of Accelerate: a trainer's own switches win over the launcher's."""
    table = source.table
    if table.has("distributed_type"):
        precision = table.entries.get("mixed_precision", Node("no")).text.lower()
        return precision in ("no", "fp16", "bf16", "fp8", "false")
    if not table.has("mixed_precision") and _count(source, _TRAINER_MARKS) >= 2:
        return False  # a trainer with arguments of its own, whose defaults decide
    return not table.has("fp16") and not table.has("bf16")


# Keys of stacks that share Hugging Face's names, or that train instead of its trainer.
_NO_TRAINER = """
    fp8 fp8_backend tensor_model_parallel_size use_megatron scale_loss amp_master_grad
    tensor_parallel_degree pipeline_parallel_degree sharding_parallel_degree fsdp_shard_degree
    tuner_type train_type base_model sequence_len micro_batch_size unified_checkpoint
    """.split()


def _is_trainer(source: Source) -> bool:
    table = source.table
    is_swift = "swift" in source.words  # its --torch_dtype float16 switches a scaler on
    own_loop = table.has("train_batch_size") and not table.has("per_device_train_batch_size")
    launched = table.has("mixed_precision") and not (table.has("fp16") or table.has("bf16"))
    if own_loop or launched or is_swift or any("flax" in word for word in source.words):
        return False
    return not any(table.entries.get(k, Node(None)).value not in (None, False) for k in _NO_TRAINER)


def _is_zoo(source: Source) -> bool:
    """Lightning, fairseq2 and verl have a trainer, too, without init."""
    node = source.table.entries.get("trainer", Node(None))
    if isinstance(node.value, list):
        first = node.value[0].value if node.value else None
        return isinstance(first, dict) and Table("", first).find("trainer.init") is not None
    return source.table.find("trainer.init") is not None


_TENSORFLOW = """
    optimizer.overflow_tolerance optimizer.log_grads optimizer.log_hists optimizer.rmsprop_decay
    optimizer.rmsprop_momentum model.tf_summary runconfig.save_checkpoints_steps
    runconfig.tf_random_seed runconfig.throttle_secs runconfig.log_step_count_steps
    optimizer.loss_scaling_factor=tf_dynamic
    """
_NO_TENSORFLOW = """
    runconfig.log_steps runconfig.checkpoint_steps model.fp16_type model.use_bfloat16
    optimizer.betas optimizer.correct_bias
    """


def _is_tensorflow(source: Source) -> bool:
    if source.marks(["optimizer.loss_scaling_factor=tf_dynamic"]):
        return True
    return _count(source, _TENSORFLOW) > 0 and _count(source, _NO_TENSORFLOW) == 0


def _is_dlsim(source: Source) -> bool:
    table = source.table
    named = [table.entries.get(key, Node(None)).value for key in ("policy", "format")]
    shapes = all(isinstance(value, (str, list, type(None))) for value in named)
    own = all(key in _DLSIM_KEYS or suggestion(key, _DLSIM_KEYS) for key in table.entries)
    return not source.is_command and shapes and own


_TRAINER_MARKS = """
    per_device_train_batch_size per_device_eval_batch_size model_name_or_path output_dir
    warmup_ratio save_strategy eval_strategy|evaluation_strategy logging_strategy save_total_limit
    overwrite_output_dir do_train do_eval fp16_full_eval bf16_full_eval
    half_precision_backend|fp16_backend remove_unused_columns finetuning_type pure_bf16
    overwrite_cache
    """
_ZOO_KEYS = "optimizer model runconfig csconfig training train_input eval_input"

# In the order in which they are tried.
DIALECTS = (
    Dialect(
        "verl", "verl 0.9.1", _megatron.read_verl,
        """
        @verl.trainer.|@verl/trainer/ @main_ppo|@sft_trainer actor_rollout_ref.actor
        actor_rollout_ref.rollout actor_rollout_ref.actor.strategy
        actor_rollout_ref.actor.fsdp_config actor_rollout_ref.actor.megatron
        actor_rollout_ref.actor.optim actor_rollout_ref.actor.dtype
        actor_rollout_ref.actor.grad_clip actor_rollout_ref.model algorithm.adv_estimator
        model.partial_pretrain data.train_files engine.strategy
        """,
        keys="actor_rollout_ref trainer algorithm data model_engine config_name",
        fits=_is_verl,
    ),
    Dialect(
        "accelerate", "accelerate 1.15.0", _pytorch.read_accelerate,
        """
        compute_environment distributed_type|@accelerate mixed_precision downcast_bf16
        pretrained_model_name_or_path main_training_function num_machines
        deepspeed_config.zero_stage|deepspeed_config.deepspeed_config_file
        fsdp_config.fsdp_sharding_strategy --config_file
        """,
        fits=_is_run, flat=True,
    ),
    Dialect(
        "megatron", "megatron-core 0.19.2", _megatron.read_megatron,
        """
        MODEL_ARGS MODEL_ARGS.--train-iters|MODEL_ARGS.--train-samples|MODEL_ARGS.--lr --num-layers
        --hidden-size --num-attention-heads --initial-loss-scale --loss-scale-window
        --micro-batch-size --global-batch-size --train-iters --train-samples
        --use-precision-aware-optimizer --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32
        --tensor-model-parallel-size --pipeline-model-parallel-size --seq-length
        --max-position-embeddings --lr-decay-style --hysteresis --use-mcore-models
        --use-distributed-optimizer
        """,
        keys="MODEL_ARGS ENV_VARS TEST_TYPE",
    ),
    Dialect(
        "fairseq", "its sources", _pytorch.read_fairseq,
        """
        common.fp16|common.bf16|common.memory_efficient_fp16|common.memory_efficient_bf16
        fairseq.common.fp16|fairseq.common.bf16 fairseq.optimization fairseq.task
        common.fp16_init_scale common.fp16_scale_window common.log_format common.log_interval
        common.fp16_scale_tolerance common.threshold_loss_scale common.min_loss_scale
        optimization.update_freq optimization.clip_norm optimization.max_update
        distributed_training dataset.max_tokens task._name task.data criterion._name
        optimizer._name lr_scheduler._name model._name checkpoint.save_interval_updates
        @fairseq-train|@fairseq_cli/train --fp16-init-scale --fp16-scale-window
        --fp16-scale-tolerance --memory-efficient-fp16 --memory-efficient-bf16 --criterion
        --update-freq --max-tokens --threshold-loss-scale --min-loss-scale --clip-norm --user-dir
        --ddp-backend --label-smoothing --fp16-adam-stats
        """,
        keys="common optimization distributed_training task model criterion optimizer "
        "lr_scheduler dataset checkpoint fairseq",
    ),
    Dialect(
        "huggingface", "transformers 5.24.0, TRL 1.16", _pytorch.read_huggingface, _TRAINER_MARKS,
        keys="fp16 bf16 gradient_accumulation_steps deepspeed learning_rate max_steps weight_decay "
        "dtype torch_dtype optim adam_beta1 adam_beta2 adam_epsilon fp16_opt_level fsdp "
        "label_smoothing_factor max_grad_norm num_train_epochs logging_steps lr_scheduler_type "
        "gradient_checkpointing",
        fits=_is_trainer,
    ),
    Dialect(
        "lightning", "Lightning 2.6.6", _pytorch.read_lightning,
        """
        trainer.precision trainer.max_epochs|trainer.max_steps|trainer.max_time trainer.devices
        trainer.accelerator trainer.strategy trainer.gradient_clip_val
        trainer.accumulate_grad_batches trainer.num_nodes trainer.log_every_n_steps
        trainer.val_check_interval trainer.amp_backend exp_manager
        model.native_amp_init_scale|model.megatron_amp_O2 model.native_amp_growth_interval
        """,
        fits=_pytorch.is_lightning,
    ),
    Dialect(
        "cerebras", "Model Zoo 2.10", _cerebras.read_trainer,
        """
        trainer trainer.init trainer.fit trainer.init.precision trainer.init.backend
        trainer.init.loop trainer.init.model trainer.init.device trainer.init.optimizer
        """,
        keys="trainer", fits=_is_zoo, has_backend=True,
    ),
    Dialect(
        "deepspeed", "DeepSpeed 0.19.8", _deepspeed.read,
        """
        zero_optimization train_micro_batch_size_per_gpu zero_allow_untested_optimizer
        steps_per_print wall_clock_breakdown fp16.enabled|fp16.loss_scale|fp16
        bf16.enabled|bfloat16.enabled|bf16 train_batch_size gradient_clipping
        fp16.initial_scale_power|fp16.loss_scale_window|fp16.hysteresis torch_autocast.enabled
        optimizer.params amp.enabled precision data_types
        zero_optimization.stage|zero_optimization.overlap_comm
        """,
        keys="gradient_accumulation_steps optimizer scheduler communication_data_type "
        "prescale_gradients gradient_predivide_factor amp bfloat16 autotuning curriculum_learning "
        "flops_profiler activation_checkpointing",
        fits=lambda source: not source.is_command and bool(_deepspeed.own_keys(source.table)),
    ),
    Dialect(
        "torchtitan", "torchtitan before 0.3", _pytorch.read_torchtitan,
        """
        training.mixed_precision_param training.mixed_precision_reduce job.dump_folder
        job.config_file training.local_batch_size model.flavor model.converters training.dtype
        parallelism.data_parallel_shard_degree training.seq_len quantize.linear
        activation_checkpoint.mode profiling.enable_profiling
        """,
        keys="training job model optimizer parallelism quantize float8 mx",
    ),
    Dialect(
        "torch", "its sources", _pytorch.read_torch, "", needs=0,
        fits=lambda source: _pytorch.has_arguments(source, _pytorch.GRAD_SCALERS),
    ),
    Dialect(
        "apex", "its sources", _pytorch.read_apex, "", needs=0,
        fits=lambda source: _pytorch.has_arguments(source, _pytorch.APEX_NAMES),
    ),
    Dialect(
        "cerebras-tf", "its sources", _cerebras.read_tf,
        f"{_TENSORFLOW} optimizer.optimizer_type optimizer.loss_scaling_factor csconfig",
        keys=_ZOO_KEYS, fits=_is_tensorflow,
    ),
    Dialect(
        "cerebras-old", "its sources, 1.6 to 2.5", _cerebras.read_old,
        """
        optimizer.optimizer_type optimizer.loss_scaling_factor model.mixed_precision
        model.fp16_type model.use_bfloat16 runconfig.target_device runconfig.checkpoint_steps
        runconfig.log_steps runconfig.max_steps runconfig.num_steps train_input.data_processor
        csconfig optimizer.steps_per_increase
        """,
        keys=_ZOO_KEYS, has_backend=True,
        fits=lambda source: _count(source, "optimizer.optimizer_type optimizer.loss_scaling_factor")
        > 0,
    ),
    Dialect(
        "dlsim", "this release", read_dlsim, "policy format parameters",
        keys=" ".join(_DLSIM_KEYS), fits=_is_dlsim, needs=1,
    ),
)  # fmt: skip

FOREIGN = (
    Foreign(
        "PaddleNLP", "paddle",
        "scale_loss amp_master_grad unified_checkpoint tensor_parallel_degree|"
        "pipeline_parallel_degree sharding_parallel_degree fuse_attention_qkv "
        "tensor_parallel_output virtual_pp_degree amp_custom_black_list",
        "bf16 fp16", "scale_loss:init_loss_scaling",
    ),
    Foreign(
        "MindFormers", "mindspore-cell",
        "runner_wrapper runner_config parallel_config run_mode model.model_config "
        "train_dataset_task context.mode",
        "model.model_config.compute_dtype",
        "runner_wrapper.scale_sense.loss_scale_value:loss_scale_value "
        "runner_wrapper.scale_sense.scale_factor:scale_factor "
        "runner_wrapper.scale_sense.scale_window:scale_window",
    ),
    Foreign(
        "axolotl", "torch",
        "sequence_len sample_packing pad_to_sequence_len val_set_size dataset_prepared_path "
        "lora_target_linear train_on_inputs lora_model_dir base_model_config "
        "is_llama_derived_model eval_sample_packing",
        "bf16 fp16",
    ),
    Foreign(
        "ms-swift", "torch",
        "@=swift @=sft|@=pt|@=rlhf tuner_type train_type --rlhf_type custom_dataset_info "
        "split_dataset_ratio external_plugins",
        "bf16 fp16 torch_dtype",
    ),
    Foreign(
        "torchtune", "torch",
        "model._component_ optimizer._component_ loss._component_ tokenizer._component_ "
        "dataset._component_ checkpointer._component_ lr_scheduler._component_",
        "dtype",
    ),
    Foreign(
        "fairseq2", "fairseq2",
        "trainer.fp16_loss_scale trainer.data_parallelism trainer.mixed_precision trainer.dtype "
        "model.family trainer.fsdp regime",
        "trainer.mixed_precision.dtype trainer.dtype",
    ),
    Foreign(
        "NeMo RL", "NAME",
        "policy.dtensor_cfg policy.megatron_cfg policy.train_global_batch_size grpo "
        "policy.generation loss_fn policy.max_total_sequence_length",
        "policy.precision",
    ),
    Foreign(
        "diffusion-pipe", "NAME",
        "pipeline_stages micro_batch_size_per_gpu model.transformer_dtype blocks_to_swap "
        "video_clip_mode",
        "model.dtype",
    ),
    Foreign(
        "Composer", "torch",
        "train_loader eval_loader icl_tasks algorithms device_eval_batch_size "
        "fsdp_config.activation_checkpointing",
        "precision",
    ),
    Foreign("LeRobot", "torch", "policy.type dataset.repo_id policy.push_to_hub policy.use_amp"),
)  # fmt: skip


def _count(source: Source, marks: str) -> int:
    return sum(bool(source.marks(mark.split("|"))) for mark in marks.split())


def _is_of(dialect: Dialect, source: Source) -> bool:
    if dialect.fits is not None and not dialect.fits(source):
        return False
    flat = dialect.flat and not source.is_command
    inside = replace(source, table=_pytorch.flat(source.table)) if flat else source
    count = _count(inside, dialect.marks)
    if count >= dialect.needs:
        return True
    alone = {*dialect.keys.split(), *(m.split(".")[0] for m in dialect.marks.split())}
    could = count > 0 and dialect.keys and not source.is_command
    return bool(could) and source.table.entries.keys() <= alone


def _foreign(source: Source) -> Foreign | None:
    return next((one for one in FOREIGN if _count(source, one.marks) >= 2), None)


def is_known(source: Source, options: Options) -> bool:
    """Whether a command is of a stack that is read."""
    if options.kind or _foreign(source) is not None:
        return bool(options.kind)
    return any(_is_of(dialect, source) for dialect in DIALECTS)


def dialect_of(source: Source, options: Options) -> Dialect:
    """Returns the stack of a file or a command; raises UsageError for one that is not read."""
    if not options.kind and _foreign(source) is not None:
        _refuse_unread(source)
    for dialect in DIALECTS:
        if not options.kind and _is_of(dialect, source):
            return dialect
        if options.kind == dialect.name:
            _require_something(dialect, source)
            return dialect
    if not options.kind:
        _refuse_unread(source)
    names = [dialect.name for dialect in DIALECTS]
    meant = suggestion(options.kind, names)
    hint = f" (did you mean '{meant}'?)" if meant else ""
    refuse("--config-kind", "unknown name" + hint, one_of(names), quoted(options.kind))


def _require_something(dialect: Dialect, source: Source) -> None:
    """Refuses a file that has nothing of the stack that the user names: it would say nothing."""
    marks = dialect.marks.replace("|", " ").split()
    if dialect.name == "deepspeed" or dialect.needs == 0 or source.marks(marks):
        return
    keys = [mark for mark in marks if not mark.startswith("@")]
    source.table.refuse("", f"no key of {dialect.name}", f"keys such as {', '.join(keys[:3])}")


def _refuse_unread(source: Source) -> NoReturn:
    """Refuses a stack that is not read, with the options that do the same."""
    table = source.table
    foreign = _foreign(source)
    if foreign is not None:
        problem = f"a configuration of {foreign.name}, which is not read"
        table.refuse("", problem, _options_for(source, foreign))
    named = [table.entries.get(key) for key in ("deepspeed_config", "deepspeed")]
    if source.is_command and any(named):
        _deepspeed.refuse_run(source, next(filter(None, named)))
    keys = list(table.entries)[:5] + ["..."] * (len(table.entries) > 5)
    table.refuse(
        "",
        "not a known training configuration",
        f"two keys of {one_of(dialect.name for dialect in DIALECTS)} (or name it by --config-kind),"
        " or --policy NAME --format NAME --set KEY=VALUE",
        ", ".join(printable(key) for key in keys) or "no keys",
    )


def _format_of(source: Source, foreign: Foreign) -> str:
    """Returns the format that the values name: `fp16: true`, `precision: bf16-mixed`, 16, 32."""
    for path in foreign.precision.split():
        node = source.table.find(path) or Node(None)
        text = node.text
        if isinstance(node.value, bool) or text == "auto":  # of a switch, its key tells it
            text = path if node.value else ""
        if "bf16" in text or "bfloat16" in text:
            return "bf16"
        # ms-swift switches fp16 on for weights in float32.
        if "16" in text or ("32" in text and foreign.name == "ms-swift"):
            return "fp16"
        if "32" in text or text == "no":
            return "float32"
    return ""


def _options_for(source: Source, foreign: Foreign) -> str:
    """The options that do what the file asks for, with its own numbers."""
    table = source.table
    deepspeed = table.entries.get("deepspeed", Node(None))
    own = deepspeed.text.startswith("zero") and not set("./") & set(deepspeed.text)
    if deepspeed.text and deepspeed.value is not True and not own:
        return f"--config with the DeepSpeed file {quoted(deepspeed.text)}"
    format_name, policy, settings = _format_of(source, foreign), foreign.policy, []
    for pair in foreign.settings.split():
        path, _, parameter = pair.partition(":")
        node = table.find(path)
        if node is not None and isinstance(node.value, Number):
            settings.append(f"--set {parameter}={node.value.text}")
    if foreign.name == "MindFormers":  # whose scaler runs in any format
        policy, settings = _mindspore_scaler(table, settings)
    elif format_name == "bf16":
        return "--policy static --format bf16"  # none of the others scales the loss in it
    if format_name == "float32":
        return "nothing to simulate in float32, or a run in 16 bits"
    if foreign.name == "PaddleNLP" and not settings:
        settings = ["--set init_loss_scaling=32768"]  # its own default
    if deepspeed.value not in (None, False):
        policy, settings = "deepspeed", []
    options = " ".join([f"--policy {policy}", f"--format {format_name or 'fp16'}", *settings])
    return options if format_name else f"{options}, or --policy static --format bf16"


def _mindspore_scaler(table: Table, settings: list[str]) -> tuple[str, list[str]]:
    """The policy of scale_sense: a number, or the name of a class with its arguments."""
    sense = table.find("runner_wrapper.scale_sense") or Node(None)
    kind = table.find("runner_wrapper.scale_sense.type") or sense
    if "Dynamic" in kind.text:
        return "mindspore-cell", settings
    value = sense.text if isinstance(sense.value, Number) else ""
    if not value and "Fixed" in kind.text and settings:
        value = settings[0].rpartition("=")[2]
    return ("static", [f"--set loss_scale={value}"]) if value else ("NAME", settings)
