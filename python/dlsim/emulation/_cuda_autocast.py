# SPDX-License-Identifier: Apache-2.0
"""CUDA's autocast in any format, on a CPU.

It is emulated by kernels in PyTorch's dispatcher, so that its rules also hold inside composite and
scripted functions, attention, and checkpoints that backward computes again. Products take and give
16-bit values and sum in float32. fp16 and bf16 are PyTorch's own tensors, which refuse what they
refuse in reality. Of another format, `_Carrier` holds the values in float32, rounded, under the
name of a type that PyTorch knows.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._core import Format
from .._errors import UsageError
from .._rounding import Rounding, Tensor
from ..recorder._tensors import tensors_in

# -- Which operations torch.autocast on CUDA runs in 16 bits, in float32, or in what they are given

# The lists are those of PyTorch's documentation ("CUDA Ops that can autocast to float16", "... to
# float32", "... promote to the widest input type") and of its operators that have a kernel for
# AutocastCUDA. Operators that PyTorch makes of them have their names, see `operation_of`.

_NARROW = frozenset(
    """
    addbmm addmm addmv addr baddbmm bmm chain_matmul conv conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d convolution einsum gru gru_cell
    linalg_multi_dot linalg_vecdot linear lstm lstm_cell matmul mm multi_dot mv prelu rnn_relu
    rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention __matmul__ __rmatmul__
    """.split()
)

_WIDE = frozenset(
    """
    __pow__ __rpow__ acos asin binary_cross_entropy binary_cross_entropy_with_logits cdist cosh
    cosine_embedding_loss cosine_similarity cumprod cumsum dist erfinv exp expm1 frobenius_norm
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm linalg_matrix_norm
    linalg_vector_norm log log10 log1p log2 log_softmax logsumexp margin_ranking_loss matrix_norm
    mse_loss multi_margin_loss multilabel_margin_loss nll_loss norm nuclear_norm pdist
    poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d vector_norm
    """.split()
)

# With tensors of several types they run in the widest, where other operations may refuse them.
_PROMOTE = frozenset(
    """
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
    """.split()
)

# What PyTorch's functions are made of, by the names that readers know them by.
_NAMES = {
    "addbmm": "matmul",
    "addmm": "matmul",
    "addmv": "matmul",
    "baddbmm": "matmul",
    "bmm": "matmul",
    "cdist_forward": "cdist",
    "convolution": "conv",
    "cudnn_batch_norm": "batch_norm",
    "cudnn_convolution": "conv",
    "cudnn_convolution_transpose": "conv",
    "fused_rms_norm": "rms_norm",
    "miopen_batch_norm": "batch_norm",
    "miopen_convolution": "conv",
    "mkldnn_convolution": "conv",
    "mkldnn_rnn_layer": "lstm",
    "mm": "matmul",
    "multilabel_margin_loss_forward": "multilabel_margin_loss",
    "mv": "matmul",
    "native_batch_norm": "batch_norm",
    "native_batch_norm_legit": "batch_norm",
    "native_batch_norm_legit_no_training": "batch_norm",
    "native_dropout": "dropout",
    "native_group_norm": "group_norm",
    "native_layer_norm": "layer_norm",
    "nll_loss2d": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
    "nll_loss_forward": "nll_loss",
    "pdist_forward": "pdist",
    "prelu_kernel": "prelu",
    "safe_softmax": "softmax",
    "thnn_fused_gru_cell": "gru_cell",
    "thnn_fused_lstm_cell": "lstm_cell",
    "upsample_bilinear2d_aa": "upsample_bilinear2d",
    "upsample_bicubic2d_aa": "upsample_bicubic2d",
    "upsample_nearest_exact1d": "upsample_nearest1d",
    "upsample_nearest_exact2d": "upsample_nearest2d",
    "upsample_nearest_exact3d": "upsample_nearest3d",
}

# Their result has the type of their first tensor, whatever the others have.
_AS_FIRST = frozenset(
    "batch_norm dropout embedding gather index_put instance_norm masked_fill scatter".split()
)


def operation_of(operator: str) -> str:
    """Returns the name of the operation that an operator of PyTorch does, such as `matmul`."""
    name = operator.rpartition("::")[2].strip("_")
    if name.startswith("scaled_dot_product_"):
        return "scaled_dot_product_attention"
    return _NAMES.get(name, name)


# -- CUDA's autocast in any format, on a CPU

# Whose types lack much of what is used here in PyTorch 1.13.
_torch: Any = torch
_Mode: Any = TorchDispatchMode
_Base: Any = torch.Tensor

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

_CLAMPS = ("clamp", "clamp_min", "clamp_max")
_DRAWS = ("rand", "rand_like", "randn", "randn_like")
_REFUSES = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
    "binary_cross_entropy_with_logits or BCEWithLogitsLoss"
)


class CudaAutocast:
    """Within it, `forward()` is CUDA's autocast in a format; backward belongs inside as well.

    Meanwhile `torch.autocast("cpu")` is CUDA's in all threads, and so is `torch.autocast("cuda")`;
    with enabled=False it is float32, as always. `carried` holds fp16 and bf16 in float32, too: for
    operations that PyTorch does not have for 16-bit tensors on a CPU.
    """

    def __init__(self, format: str | Format, *, carried: bool = False) -> None:
        rounding = Rounding(format)
        name = rounding.format.name
        self.dtype = TYPES.get(name, torch.float16)
        if not _can_autocast(self.dtype):
            raise UsageError(
                f"format: bad format {name!r}, expected bf16 as autocast on a CPU has no float16 "
                f"before PyTorch 2.3, got it with {torch.__version__}"
            )
        self._mode = None
        if carried or name not in TYPES:
            self._mode = _Carried(rounding, self.dtype, refuses=name in TYPES)
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self._kernels: Any = None
        self._undo: Callable[[], None] = lambda: None

    def __enter__(self) -> CudaAutocast:
        self._kernels = _torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"[\s\S]*[Oo]verrid")  # that is the purpose
            for operator, rule in _operators():
                self._kernels.impl(operator, functools.partial(rule, self, operator), "AutocastCPU")
        if self._mode is not None:
            self._mode.__enter__()
        self._undo = _on_cpu()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo()
        if self._mode is not None:
            self._mode.__exit__(*error)
        kernels, self._kernels = self._kernels, None
        if hasattr(kernels, "_destroy"):  # before PyTorch 2.1 its end does that
            kernels._destroy()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Within it, operations run as CUDA's autocast runs them."""
        try:
            with _torch.autocast("cpu", dtype=self.dtype):
                yield
        finally:
            self._casts.clear()

    def narrow(self, tensor: Tensor) -> Tensor:
        """Returns a floating-point tensor in 16 bits; a parameter's copy is shared meanwhile."""
        if not _eligible(tensor) or tensor.dtype == self.dtype:
            return tensor
        if not (tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled()):
            narrow: Tensor = tensor.to(self.dtype)
            return narrow
        if id(tensor) not in self._casts:
            self._casts[id(tensor)] = tensor, tensor.to(self.dtype)
        return self._casts[id(tensor)][1]


def _on_cpu() -> Callable[[], None]:
    """Has models that turn CUDA's autocast off, or ask for it, do that on the CPU."""
    of_class, ask = _torch.autocast.__init__, _torch.is_autocast_enabled

    def init(self: Any, device_type: str, *args: Any, **options: Any) -> None:
        of_class(self, "cpu" if device_type == "cuda" else device_type, *args, **options)

    def is_enabled(device_type: str = "cuda") -> bool:
        return bool(ask("cpu" if device_type == "cuda" else device_type))

    def undo() -> None:
        _torch.autocast.__init__, _torch.is_autocast_enabled = of_class, ask

    if hasattr(_torch, "get_autocast_dtype"):  # since PyTorch 2.4 the latter takes a device
        _torch.autocast.__init__, _torch.is_autocast_enabled = init, is_enabled
    return undo


@functools.cache
def _can_autocast(dtype: torch.dtype) -> bool:
    """Returns whether autocast on a CPU takes a type; before PyTorch 2.3, not float16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _torch.autocast("cpu", dtype=dtype):
                return bool(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == dtype)
        except RuntimeError:
            return False


def _eligible(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.is_cpu)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if _eligible(tensor) else tensor


def _map(value: Any, cast: Callable[[Tensor], Tensor]) -> Any:
    """Applies `cast` to the tensors of an operator's arguments, each time that one occurs."""
    if isinstance(value, Tensor):
        return cast(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_map(one, cast) for one in value)
    if isinstance(value, dict):
        return {key: _map(one, cast) for key, one in value.items()}
    return value


def _without_rules() -> Any:
    """Returns a context in which no operation is autocast, for what a kernel calls."""
    key = getattr(_torch._C.DispatchKey, "AutocastCPU", None)
    if key is None:  # PyTorch 1.13
        return _torch.autocast("cpu", enabled=False)
    return _torch._C._ExcludeDispatchKeyGuard(_torch._C.DispatchKeySet(key))


def _in_16_bits(rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with _without_rules():
        args, kwargs = _map((args, kwargs), lambda one: _wide(rules.narrow(one)))
        result = operator(*args, **kwargs)
        return _map(result, lambda one: one.to(rules.dtype) if _eligible(one) else one)


def _in_float32(_rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with _without_rules():
        args, kwargs = _map((args, kwargs), _wide)
        return operator(*args, **kwargs)


def _in_widest(_rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with _without_rules():
        if any(one.dtype == torch.float32 and one.is_cpu for one in tensors_in((args, kwargs))):
            args, kwargs = _map((args, kwargs), _wide)
        return operator(*args, **kwargs)


def _clamped(rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    # CUDA compares with bounds in float32; a CPU refuses those that 16 bits do not hold.
    with _without_rules():
        if not (_eligible(args[0]) and args[0].dtype == rules.dtype):
            return operator(*args, **kwargs)
        args, kwargs = _map((args, kwargs), _wide)
        return operator(*args, **kwargs).to(rules.dtype)


def _drawn(rules: CudaAutocast, operator: Any, *args: Any, **kwargs: Any) -> Any:
    # PyTorch draws other numbers for other types.
    with _without_rules():
        like = kwargs.get("dtype") or (args[0].dtype if isinstance(args[0], Tensor) else None)
        if like != rules.dtype:
            return operator(*args, **kwargs)
        return operator(*args, **{**kwargs, "dtype": torch.float32}).to(rules.dtype)


def _banned(_rules: CudaAutocast, _operator: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError(_REFUSES)


_RULES = ((_PROMOTE, _in_widest), (_WIDE, _in_float32), (_NARROW, _in_16_bits))


@functools.cache
def _operators() -> tuple[tuple[Any, Any], ...]:
    """Returns the operators that autocast has rules for, with their rules."""
    found = []
    for schema in _torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        hidden = name.endswith(("_", "_backward")) or "out" in schema.overload_name
        if space != "aten" or hidden or not hasattr(_torch.ops.aten, name):
            continue
        operation = operation_of(name)
        rule: Any = None
        for operations, of_these in _RULES:
            rule = of_these if operation in operations else rule
        if name == "binary_cross_entropy":
            rule = _banned
        elif operation in _CLAMPS:
            rule = _clamped
        elif operation in _DRAWS:
            rule = _drawn
        elif rule is None:
            continue
        operator = getattr(getattr(_torch.ops.aten, name), schema.overload_name or "default", None)
        if operator is not None:
            found.append((operator, rule))
    return tuple(found)


class _Carrier(_Base):  # type: ignore[misc]
    """A tensor of a 16-bit type whose values, of another format, are in `values` in float32."""

    values: Tensor
    mode: _Carried

    @staticmethod
    def __new__(cls, values: Tensor, mode: _Carried) -> _Carrier:
        """Returns a tensor that has the shape of `values`, which are rounded already."""
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=mode.dtype,
            device=values.device,
        )
        made.values, made.mode = values, mode
        carrier: _Carrier = made
        return carrier

    def __repr__(self, **_: Any) -> str:
        return f"_Carrier({self.values!r})"

    __torch_function__ = _torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls an operator where no mode is active, as when a result is printed."""
        mode = next(one.mode for one in tensors_in((args, kwargs)) if isinstance(one, _Carrier))
        return mode.__torch_dispatch__(func, types, args, kwargs)


class _Carried(_Mode):  # type: ignore[misc]
    """Runs operators on the values of carriers, and rounds what would have 16 bits."""

    def __init__(self, rounding: Rounding, dtype: torch.dtype, *, refuses: bool) -> None:
        super().__init__()
        self.dtype = dtype
        self._rounding = rounding
        self._refuses = refuses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
        if kwargs.get("dtype") != self.dtype and all(one.dtype != self.dtype for one in given):
            return func(*args, **kwargs)
        for argument, one in zip(func._schema.arguments, args, strict=False):
            if self._refuses and argument.name == "value" and isinstance(one, (int, float)):
                torch.empty((), dtype=self.dtype).fill_(one)  # raises what PyTorch would
        plain_args, plain = _map((args, kwargs), self._values)
        if plain.get("dtype") == self.dtype:
            plain["dtype"] = torch.float32
        result = func(*plain_args, **plain)
        for argument, one in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for changed in tensors_in(one):
                    if isinstance(changed, _Carrier):
                        changed.values.copy_(self._rounding(changed.values))
                    elif changed.dtype == self.dtype:
                        raise RuntimeError(f"{func}: changes a tensor that dlsim has not made")
        aliases = [one.alias_info for one in func._schema.returns]
        if aliases and aliases[0] is not None and aliases[0].is_write:
            return args[0]
        name = operation_of(func._schema.name)
        if not aliases or not self._is_narrow(name, kwargs, given):
            return result
        if not isinstance(result, (tuple, list)):
            return self._carrier(result, aliases[0])
        one_each = len(aliases) == len(result)
        # Of a norm, means and deviations have float32.
        count = 1 if name.endswith("norm") and len(given) > 1 else len(result)
        carriers = [
            self._carrier(one, aliases[i if one_each else 0]) if i < count else one
            for i, one in enumerate(result)
        ]
        return type(result)(carriers)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would import the compiler, which takes seconds

    def _values(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, _Carrier):
            return tensor.values
        return tensor.float() if tensor.dtype == self.dtype else tensor

    def _carrier(self, result: Any, alias: Any) -> Any:
        if not (isinstance(result, Tensor) and result.dtype == torch.float32):
            return result
        return _Carrier(self._rounding(result) if alias is None else result, self)

    def _is_narrow(self, name: str, kwargs: dict[str, Any], given: list[Tensor]) -> bool:
        """Returns whether results have 16 bits, as PyTorch's rules for types have it."""
        if kwargs.get("dtype") is not None:
            return bool(kwargs["dtype"] == self.dtype)
        deciding = [one for one in given if one.dim()] or given
        return all(one.dtype == self.dtype for one in deciding[: 1 if name in _AS_FIRST else None])
