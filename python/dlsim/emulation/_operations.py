# SPDX-License-Identifier: Apache-2.0
"""Which operations torch.autocast on CUDA runs in 16 bits, in float32, or in what they are given.

The lists are those of PyTorch's documentation ("CUDA Ops that can autocast to float16", "... to
float32", "... promote to the widest input type") and of its operators that have a kernel for
AutocastCUDA. Operators that PyTorch makes of them have their names, see `operation_of`.
"""

from __future__ import annotations

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


def policy_of(operation: str) -> bool | None:
    """Returns True for an operation that runs in 16 bits, False for float32.

    None: in the widest type that it is given.
    """
    if operation in _NARROW:
        return True
    return False if operation in _WIDE else None


def promotes(operation: str) -> bool:
    """Returns whether autocast makes tensors of several types the widest for an operation."""
    return operation in _PROMOTE


def as_first(operation: str) -> bool:
    """Returns whether the first tensor alone decides the type of the result."""
    return operation in _AS_FIRST
