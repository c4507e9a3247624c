# SPDX-License-Identifier: Apache-2.0
"""Histograms as PyTorch, TensorFlow 1 and the histogram plugin log them, written by tensorboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def _limits() -> np.ndarray:
    positive = []
    limit = 1e-12
    while limit < 1e20:
        positive.append(limit)
        limit *= 1.1
    return np.array([-x for x in reversed(positive)] + [0.0] + positive)


LIMITS = _limits()


def _proto(x: np.ndarray, limits: np.ndarray, counts: np.ndarray) -> HistogramProto:
    return HistogramProto(
        min=x.min(),
        max=x.max(),
        num=x.size,
        sum=x.sum(),
        sum_squares=x.dot(x),
        bucket_limit=limits.tolist(),
        bucket=counts.tolist(),
    )


def torch_histogram(values: np.ndarray) -> Summary.Value:
    """As SummaryWriter.add_histogram of torch: empty buckets at both ends are cut off."""
    x = values.reshape(-1).astype(float)
    counts, limits = np.histogram(x, bins=LIMITS)
    filled = np.flatnonzero(counts)
    if not len(filled):
        raise ValueError("The histogram is empty")
    start, end = filled[0], filled[-1] + 1
    counts = np.concatenate([[0], counts[start:end]])
    return Summary.Value(histo=_proto(x, limits[start : end + 1], counts))


def tensorflow_histogram(values: np.ndarray) -> Summary.Value:
    """As tf.compat.v1.summary.histogram: runs of empty buckets become one."""
    x = values.reshape(-1).astype(float)
    limits = np.append(LIMITS, np.finfo(float).max)
    counts = np.bincount(np.searchsorted(limits, x, side="right"), minlength=len(limits))
    last = counts.copy()
    last[:-1] += counts[1:]
    kept = (counts > 0) | (np.append(counts[1:], 1) > 0)
    return Summary.Value(histo=_proto(x, limits[kept], counts[kept]))


def plugin_histogram(values: np.ndarray) -> Summary.Value:
    """As tf.summary.histogram of TensorFlow 2: 30 buckets of one width."""
    x = values.reshape(-1).astype(float)
    low, high = x.min(), x.max()
    if low == high:
        rows = np.array([[low - 0.5, low + 0.5, x.size]])
    else:
        index = np.minimum(np.floor((x - low) / ((high - low) / 30)).astype(int), 29)
        edges = np.linspace(low, high, 31)
        rows = np.stack([edges[:-1], edges[1:], np.bincount(index, minlength=30)], axis=1)
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in rows.shape])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="histograms"))
    tensor = TensorProto(dtype=DT_DOUBLE, tensor_shape=shape, tensor_content=rows.tobytes())
    return Summary.Value(tensor=tensor, metadata=metadata)


def cerebras_histogram(values: np.ndarray) -> Summary.Value:
    """As the Model Zoo's TensorFlow trainer: of log2(|x| + 2^-50) in float32."""
    offset = np.abs(values.astype(np.float32)) + np.float32(2.0**-50)
    return tensorflow_histogram(np.log(offset) / np.float32(np.log(2.0)))


KINDS: dict[str, Callable[[np.ndarray], Summary.Value]] = {
    "torch": torch_histogram,
    "tensorflow": tensorflow_histogram,
    "plugin": plugin_histogram,
    "cerebras": cerebras_histogram,
}


class Events:
    """Writes an event file; `path` is that of the file after the block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writer = EventFileWriter(str(directory))

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()

    @property
    def path(self) -> Path:
        (path,) = self.directory.glob("*tfevents*")
        return path

    def add(self, step: int, tag: str, value: Summary.Value) -> None:
        value.tag = tag
        self._writer.add_event(Event(step=step, summary=Summary(value=[value])))

    def add_scalar(self, step: int, tag: str, number: float) -> None:
        self.add(step, tag, Summary.Value(simple_value=number))
