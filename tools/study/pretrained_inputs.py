# SPDX-License-Identifier: Apache-2.0
"""Inputs for networks with trained weights: a synthesized voice, rendered text, bytes of a file."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FORMANTS = ((700, 110), (1220, 120), (2600, 160))  # of an open vowel, and their widths, in Hz
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for the detector


def voice(seconds: float, rate: int = 16_000) -> Tensor:
    """Returns a sung vowel in syllables of a quarter second, at most 0.5, with some noise."""
    time = torch.arange(int(seconds * rate), dtype=torch.float64) / rate
    pitch = 140 * 2 ** (0.25 * torch.sin(2 * math.pi * 0.7 * time))
    phase = 2 * math.pi * torch.cumsum(pitch, 0) / rate
    sound = torch.zeros_like(time)
    for harmonic in range(1, 26):
        frequency = harmonic * pitch
        resonance = sum(1 / (1 + ((frequency - at) / width) ** 2) for at, width in FORMANTS)
        sound += (resonance + 0.02) / harmonic**0.5 * torch.sin(harmonic * phase)
    sound *= torch.sin(2 * math.pi * 2 * time).clamp(min=0) ** 0.5
    noise = torch.randn(len(time), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sound = sound / sound.abs().max() + 0.003 * noise
    return (0.5 * sound / sound.abs().max()).float()


def voice_chunks() -> Tensor:
    """Returns 15 chunks of 512 samples, each with the 64 samples before it."""
    return torch.nn.functional.pad(voice(0.5), (64, 0)).unfold(0, 576, 512)


def pitch_frames() -> Tensor:
    """Returns ten frames of 1024 samples with mean 0 and deviation 1."""
    frames = voice(0.4).unfold(0, 1024, 560)[:10]
    return (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True)


def mel_frames() -> Tensor:
    """Returns the power in 40 mel bands of 160 frames of 25 ms."""
    spectrum = torch.stft(
        voice(1.6), 400, 160, window=torch.hann_window(400), return_complex=True
    ).abs()
    return (_mel_bands(40) @ spectrum**2).T[None, :160]


def _mel_bands(count: int) -> Tensor:
    """Returns triangles of unit area over the 201 frequencies up to 8 kHz."""
    mels = torch.linspace(0, 2595 * math.log10(1 + 8000 / 700), count + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    at = torch.linspace(0, 8000, 201)
    sides = torch.minimum((at - low) / (middle - low), (high - at) / (high - middle))
    return sides.clamp(min=0) * 2 / (high - low)


def text_line() -> Tensor:
    """Returns an image of a line of text between -1 and 1, as recognition takes it."""
    return 2 * _written("loss scale 65504", 320, 48) - 1


def text_direction() -> Tensor:
    """Returns the same, narrower, as the classifier of directions takes it."""
    return 2 * _written("loss scale", 192, 48) - 1


def text_page() -> Tensor:
    """Returns an image of three lines, normalized as the detector of text takes it."""
    image = _written("float16\nholds up to\n65504", 320, 160)
    mean, deviation = (torch.tensor(one)[:, None, None] for one in (MEAN, DEVIATION))
    return (image - mean) / deviation


def _written(text: str, width: int, height: int) -> Tensor:
    """Returns an image of a text, black on white, as [1, 3, height, width] between 0 and 1."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).text((8, 4), text, "black", ImageFont.load_default(size=36))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255


def file_bytes() -> Tensor:
    """Returns the first and the last 1024 bytes of this file, as numbers."""
    content = Path(__file__).read_bytes()
    return torch.tensor([list(content[:1024] + content[-1024:])], dtype=torch.int32)
