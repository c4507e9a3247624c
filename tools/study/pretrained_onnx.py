# SPDX-License-Identifier: Apache-2.0
"""Networks in ONNX as modules of PyTorch, by onnx2torch."""

from pathlib import Path

import onnx
from onnx2torch import convert
from onnx2torch.node_converters.registry import add_converter
from onnx2torch.utils.common import OperationConverterResult, onnx_mapping_from_node
from torch import Tensor, nn


class GlobalMaxPool(nn.Module):
    """The largest value of each channel, which onnx2torch does not know."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns it with all axes kept."""
        return x.amax(tuple(range(2, x.dim())), keepdim=True)


@add_converter("GlobalMaxPool", 1)
def _largest(node, graph):
    return OperationConverterResult(GlobalMaxPool(), onnx_mapping_from_node(node))


def converted(path: Path, shape: tuple[int, ...]) -> nn.Module:
    """Returns the network of a file for inputs of a shape, weights as parameters."""
    model = onnx.load(path)
    for node in [one for one in model.graph.node if one.op_type == "Constant"]:
        weights = model.graph.initializer.add()
        weights.CopyFrom(node.attribute[0].t)
        weights.name = node.output[0]
        model.graph.node.remove(node)
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    for dimension, size in zip(dimensions, shape, strict=True):
        dimension.dim_value = size
    del model.graph.value_info[:]
    _give_ranks(model.graph)
    return convert(model).eval()


def _give_ranks(graph: onnx.GraphProto) -> None:
    """Gives the outputs of convolutions as many axes as their weights have.

    onnx2torch chooses a norm by them, and shapes are not inferred behind computed ones.
    """
    axes = {one.name: len(one.dims) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Conv":
            shape = [None] * axes[node.input[1]]
            kind = onnx.TensorProto.FLOAT
            graph.value_info.append(onnx.helper.make_tensor_value_info(node.output[0], kind, shape))
