# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's arguments, and verl, which trains with FSDP or with Megatron.

Compared with megatron-core 0.19.2 (megatron/training/arguments.py, megatron/core/optimizer) and
verl 0.9.1 (workers/engine, utils/torch_dtypes.py; before 0.8 workers/actor/dp_actor.py).
"""

from __future__ import annotations

from ._deepspeed import read as read_deepspeed
from ._deepspeed import refuse_run
from ._meaning import (
    Adam,
    Config,
    Options,
    Policy,
    adam_of,
    fsdp_formats,
    known,
    master_formats,
    switched,
)
from ._pytorch import megatron_fp8
from ._reading import Clear, Node, Number, Source, Table, described, printable, python_names

_NEVER = 2**63 - 1
_TRAINING = (
    "lr", "train_iters", "train_samples", "epochs", "min_lr", "initial_loss_scale",
    "global_batch_size", "optimizer",
)  # fmt: skip
_KEYS = (
    "fp16", "bf16", "loss_scale", "initial_loss_scale", "min_loss_scale", "clip_grad",
    "loss_scale_window", "hysteresis",
)  # fmt: skip


def read_megatron(source: Source, options: Options) -> Config:
    """A command line, or MODEL_ARGS of Megatron-LM's test cases in YAML."""
    table = source.table
    if not source.is_command:
        model = table.table("MODEL_ARGS")
        if model is None:
            table.refuse("", "no arguments of Megatron-LM", "a command line, or MODEL_ARGS")
        table = python_names(model)
    elif (table.has("load") and not any(table.has(key) for key in _TRAINING)) or table.is_text(
        "mode", "inference"
    ):
        table.refuse("", "a run without training", "--lr with --train-iters or --train-samples")
    deepspeed = table.entries.get("deepspeed_config")
    given = ("fp16", "bf16", "deepspeed")
    if source.is_command and not any(table.has(key) for key in given):
        table.refuse("", "neither fp16 nor bf16 is given", "--fp16 or --bf16")
    if table.has("deepspeed"):
        if deepspeed is None or not isinstance(deepspeed.value, dict):
            refuse_run(source, deepspeed)
        inner = Table(table.file, deepspeed.value, "", deepspeed.line)
        config = read_deepspeed(Source(inner), options)
        config.kind = "Megatron-LM with DeepSpeed"
        return config
    config = Config("Megatron-LM")
    _megatron_scaler(table, config)
    if config.formats:
        _megatron_updates(Clear(table, source.complete), config.formats[0], config)
    config.notes += table.misspelt(_KEYS)
    config.clip_norm(table, "clip_grad", 1.0)
    if table.has("global_batch_size"):
        config.notes.append(
            "training accumulates global-batch-size / (micro-batch-size x data-parallel ranks) "
            "micro-steps, which the file does not say: --grad-accum-steps where a trace has them "
            "apart"
        )
    _scaled_layers(table, config)
    return config


def _megatron_scaler(table: Table, config: Config) -> None:
    precision = switched(table)
    constant = table.number("loss_scale", least=0) if precision else None
    policy = Policy("megatron")
    config.precision(precision, policy)
    if constant:  # overflows skip their step, the scale stays
        policy.set("initial_scale", constant)
        policy.set("min_scale", constant)
        policy.set("hysteresis", 1)
        policy.set("growth_interval", _NEVER)
        config.policies = [policy]
        config.notes = [
            f"loss_scale {constant.text} is constant: a megatron scaler that cannot grow nor fall"
        ]
    elif precision == "fp16":
        policy.set("initial_scale", table.number("initial_loss_scale", above=0))
        policy.set("min_scale", table.number("min_loss_scale", above=0))
        window = table.number("loss_scale_window", above=0)
        if window is not None:  # a float, which no count of steps equals if it has a fraction
            policy.set("growth_interval", int(window) if window == float(int(window)) else _NEVER)
        policy.set("hysteresis", table.integer("hysteresis", 1))


def _megatron_updates(keys: Clear, kind: str, config: Config) -> None:
    """What the precision-aware optimizer keeps; its states in fp16 and fp8 have own scales."""
    formats: dict[str, str | None] = {**master_formats(kind)}
    formats["gradients"] = formats["reduce"] = _gradient_type(keys, kind)
    is_adam = not keys.has("optimizer") or keys.text("optimizer") == "adam"
    aware = keys.switch("use_precision_aware_optimizer")
    if not is_adam or aware is None or keys.has("optimizer_cpu_offload"):
        formats["first"] = formats["second"] = None
        if aware is None:
            formats["master"] = None
    else:
        config.adam = adam_of(keys, "adam_beta1 adam_beta2 adam_eps weight_decay", decay=0.01)
        names = {"master": "main_params", "first": "exp_avg", "second": "exp_avg_sq"}
        for name, key in names.items() if aware else ():
            found = keys.format(f"{key}_dtype", "fp32")
            formats[name] = None if found == "fp16" else found
    config.updates = known(formats)


def _gradient_type(keys: Clear, kind: str) -> str | None:
    """float32 in bf16 unless something asks for less, fp16's own unless something asks for more."""
    wide = keys.switch("accumulate_allreduce_grads_in_fp32")
    narrow = keys.switch("grad_reduce_in_bf16")
    main = keys.format("main_grads_dtype", "fp32")
    if keys.has("use_megatron_fsdp") or keys.has("use_torch_fsdp2") or None in (wide, narrow, main):
        return None
    if kind == "fp16":
        return "fp32" if wide else kind
    return kind if narrow or (not wide and main != "fp32") else "fp32"


def _scaled_layers(table: Table, config: Config) -> None:
    """Transformer Engine's layers in FP4 or FP8."""
    if table.has("fp4_format"):
        if (table.choice("fp4_recipe", ("nvfp4", "custom")) or "nvfp4") != "nvfp4":
            config.notes.append("fp4_recipe custom is not simulated: it is code")
            return
        config.scaled = "nvfp4"
        config.notes.append(
            "nvfp4 without the stochastic rounding and the rotations of the recipe: it loses more "
            "here"
        )
        return
    elements = table.choice("fp8_format", ("e4m3", "hybrid"))
    if elements:
        config.scaled = megatron_fp8(table, elements, config.notes)


# ------------------------------------------------------------------------------------------ verl

_STRATEGIES = ("fsdp", "fsdp2", "megatron")
_OWN_FILES = (
    "ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine",
    "_generated_ppo_trainer", "_generated_ppo_megatron_trainer",
)  # fmt: skip
_OVERRIDES = (
    "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis",
)  # fmt: skip


def _type(table: Table, key: str) -> str:
    """A type's name as verl knows it: fp16, bf16 or "" for float32; bfloat16 by default."""
    node = table.node(key)
    if node is None:
        return "bf16"
    names = {"16": "fp16", "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16"}
    names |= dict.fromkeys(("32", "fp32", "float32"), "")
    if node.text not in names:
        expected = "bfloat16, float16 or float32"
        table.refuse(key, "unexpected precision", expected, described(node))
    return names[node.text]


def read_verl(source: Source, options: Options) -> Config:
    """The training of the actor, or supervised fine-tuning (its keys in `engine` and `optim`)."""
    file = source.table
    actor = file.table_or_empty("actor_rollout_ref").table_or_empty("actor")
    is_tuning = not actor.entries and (
        any("sft_trainer" in word for word in source.words)
        or bool(source.marks(["model.partial_pretrain", "engine.strategy"]))
    )
    engine = file.table_or_empty("engine")
    strategy = _strategy(source, engine if is_tuning else actor)
    if is_tuning:
        optimizer = file.table_or_empty("optim")
        if file.find("model.partial_pretrain") is not None:  # before the engines
            config = Config("")
            config.precision("bf16", Policy("torch"))
            config.clip_norm(optimizer, "clip_grad", 1.0)
        elif strategy == "megatron":
            config = _verl_megatron(engine, optimizer, options)
        else:
            config = _verl_fsdp(engine, optimizer)
        config.kind = "verl's fine-tuning"
        return config
    optimizer = actor.table_or_empty("optim")
    if strategy == "megatron":
        config = _verl_megatron(actor.table_or_empty("megatron"), optimizer, options)
    else:
        config = _verl_actor(file, actor, optimizer, options)
    name = file.entries.get("config_name")
    if name is not None and name.text.partition(".y")[0] not in _OWN_FILES:
        config.notes.append(
            f"the file of --config-name {described(name)} is not read: where the command line "
            "has no value, verl's defaults are taken"
        )
    config.notes.append("the actor's training is read; the critic computes in bf16 unscaled")
    config.notes.append(
        "micro-steps depend on the ranks: --grad-accum-steps where a trace has them apart"
    )
    return config


def _strategy(source: Source, owner: Table) -> str:
    """The engine that trains; verl's own files name theirs."""
    found = owner.string("strategy")
    if found is None:
        chosen = source.table.entries.get("model_engine") or source.table.find("engine.strategy")
        named = [source.table.entries.get("config_name"), chosen]
        text = " ".join(node.text for node in named if node is not None)
        engines = ("megatron", "veomni", "torchtitan", "automodel")
        found = next((engine for engine in engines if engine in text), "fsdp")
    if found not in _STRATEGIES:
        owner.refuse(
            "strategy" if owner.has("strategy") else "",
            f"verl with {printable(found)} is not read",
            "--policy static --format bf16 where it computes in bfloat16",
        )
    return found


def _apply_fsdp(kind: str, config: Config) -> None:
    config.precision(kind, Policy("torch", ["growth_interval=400"]))
    if kind == "fp16":
        config.notes.append("ShardedGradScaler with growth_interval 400, which the original fixes")


def _fsdp_updates(engine: Table, optimizer: Table, config: Config) -> None:
    """The optimizer updates shards in model_dtype, with states like them."""
    if not config.formats:
        return
    keys = Clear(optimizer)
    shards = Clear(engine).format("model_dtype", "fp32")
    reduce = Clear(engine.table_or_empty("mixed_precision")).format("reduce_dtype", "fp32")
    config.updates = fsdp_formats(config.formats[0], reduce, shards)
    name = keys.text("optimizer") if keys.has("optimizer") else "AdamW"
    own = keys.has("optimizer_impl") and keys.text("optimizer_impl") != "torch.optim"
    if own or keys.has("override_optimizer_config") or name not in ("Adam", "AdamW"):
        return
    config.adam = Adam(
        keys.number("lr"), keys.item("betas", 0, 0.9), keys.item("betas", 1, 0.999), 1e-8,
        keys.number("weight_decay", 0.01), decoupled=name == "AdamW",
    )  # fmt: skip
    if config.adam.beta1 and shards:
        config.updates |= {"first": shards, "second": shards}


def _verl_fsdp(engine: Table, optimizer: Table) -> Config:
    """mixed_precision.param_dtype decides since 0.8."""
    config = Config("verl with FSDP")
    kind = _type(engine.table_or_empty("mixed_precision"), "param_dtype")
    _apply_fsdp(kind, config)
    _fsdp_updates(engine, optimizer, config)
    if engine.has("dtype") and _type(engine, "dtype") != kind:
        config.notes.append(
            "dtype has no effect with FSDP since verl 0.8: mixed_precision.param_dtype decides, "
            "bfloat16 by default (--config-version 0.7 for the older rule)"
        )
    config.max_norm = float(optimizer.number("clip_grad", above=0) or 1.0)
    return config


def _verl_actor(file: Table, actor: Table, optimizer: Table, options: Options) -> Config:
    """The actor with FSDP, by the rules of the release that wrote the file."""
    trainer, fsdp = file.table_or_empty("trainer"), actor.table_or_empty("fsdp_config")
    legacy = actor.has("dtype") or trainer.has("use_legacy_worker_impl")
    if options.version is not None:
        legacy = options.before(0, 8, 0)
    if not legacy:
        config = _verl_fsdp(fsdp, optimizer)
        clip = actor.number("grad_clip")
        if clip is not None and clip != config.max_norm:
            config.notes.append(
                "grad_clip has no effect since verl 0.8: optim.clip_grad clips, at 1.0 by default "
                "(--config-version 0.7 for the older rule)"
            )
        return config
    config = Config("verl with FSDP")  # dtype decided, in forks the actor's own
    kind = _type(actor, "dtype") if actor.has("dtype") else _type(fsdp, "dtype")
    disabled = trainer.is_text("use_legacy_worker_impl", "disable")
    if disabled:
        kind = "bf16"
    _apply_fsdp(kind, config)
    if disabled:
        config.notes.append("use_legacy_worker_impl disable: bf16, whatever dtype says")
    if actor.has("dtype"):
        config.notes.append("actor.dtype decides: a key of forks of verl before 0.8")
    mixed = fsdp.table("mixed_precision")
    if mixed is not None and _type(mixed, "param_dtype") != kind:
        config.notes.append(
            "mixed_precision.param_dtype is not dtype: the scaler goes by dtype, gradients of "
            "parameters are rounded to param_dtype"
        )
    _fsdp_updates(fsdp, optimizer, config)
    config.clip_norm(actor, "grad_clip", 1.0)
    return config


def _verl_megatron(engine: Table, optimizer: Table, options: Options) -> Config:
    """Megatron's arguments, as verl makes them of its own."""
    kind = engine.choice("dtype", ("bfloat16", "float16")) or "bfloat16"
    overrides = optimizer.table_or_empty("override_optimizer_config")
    clear = Clear(optimizer)
    aware = clear.switch("use_precision_aware_optimizer") is True
    wide = clear.format("main_grads_dtype", "fp32") == "fp32"
    entries = {"fp16" if kind == "float16" else "bf16": Node(True)}
    if kind == "float16" or not aware or wide:
        entries["accumulate_allreduce_grads_in_fp32"] = Node(True)
    taken = ["lr", "weight_decay", "optimizer"]
    if aware and kind != "float16":
        taken += ["use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype"]
        taken += ["exp_avg_sq_dtype"]
    entries |= {key: optimizer.entries[key] for key in taken if optimizer.has(key)}
    for index, name in enumerate(("adam_beta1", "adam_beta2")):
        beta = clear.item("betas", index)
        if beta is not None:
            entries[name] = Node(Number(repr(beta)))
    if optimizer.has("clip_grad"):
        entries["clip_grad"] = optimizer.entries["clip_grad"]
    entries["initial_loss_scale"] = Node(Number("32768"))
    entries |= {key: overrides.entries[key] for key in _OVERRIDES if overrides.has(key)}
    arguments = Table(engine.file, entries, optimizer.path, optimizer.line)
    config = read_megatron(Source(arguments, is_command=True), options)
    config.kind = "verl with Megatron"
    return config
