# SPDX-License-Identifier: Apache-2.0
"""The plot of the evidence: what a figure said, against how much worse the training ended."""

from __future__ import annotations

import math
from pathlib import Path

from evidence import Case, is_held_out, values_of

WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 260, 50, 30, 30
LEAST = 1e-9  # smaller figures are drawn here
COLORS = {"fp16": "#4477aa", "bf16": "#228833", "cb16": "#aa3377", "fp8-e5m2": "#ee7733"}
TICKS = (-1, 0, 1, 3, 10, 30, 100)


def _x(value: float) -> float:
    return WIDTH * (1 + math.log10(min(max(value, LEAST), 1.0)) / -math.log10(LEAST))


def _y(excess: float) -> float:
    low, high = math.asinh(-2), math.asinh(150)
    place = (math.asinh(min(max(excess, -2), 150)) - low) / (high - low)
    return HEIGHT * (1 - place)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{stroke}"/>'


def _axes(title: str) -> list[str]:
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    parts.append(_text(WIDTH / 2, -10, title))
    for exponent in range(-9, 1, 3):
        x = _x(10.0**exponent)
        parts += [_text(x, HEIGHT + 14, f"1e{exponent}"), _line(x, 0, x, HEIGHT, "#eee")]
    for tick in TICKS:
        parts += [_text(-5, _y(tick) + 4, str(tick), "end")]
        parts += [_line(0, _y(tick), WIDTH, _y(tick), "#000" if tick == 1 else "#eee")]
    return parts


def _point(x: float, y: float, case: Case) -> str:
    color = COLORS[case.row.format]
    fill = "none" if is_held_out(case) else color
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="{color}"/>'


def _panel(cases: list[Case], figure: str, title: str, threshold: float) -> str:
    parts = _axes(title)
    parts.append(_line(_x(threshold), 0, _x(threshold), HEIGHT, "#c00"))
    for case, value in zip(cases, values_of(cases, figure), strict=True):
        parts.append(_point(_x(value), _y(case.excess), case))
    return "\n".join(parts)


def write(path: Path, cases: list[Case], panels: list[tuple[str, str, float]]) -> None:
    """Writes a panel for each figure, title and threshold side by side, as SVG."""
    step = WIDTH + LEFT + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{step * len(panels)}" '
        f'height="{HEIGHT + TOP + 60}" font-family="sans-serif" font-size="11">',
        "<!-- SPDX-License-Identifier: Apache-2.0; made by tools/study/run -->",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, (figure, title, threshold) in enumerate(panels):
        body = _panel(cases, figure, title, threshold)
        parts.append(f'<g transform="translate({LEFT + step * number},{TOP})">\n{body}\n</g>')
    place = LEFT
    for format, color in COLORS.items():
        y = TOP + HEIGHT + 40
        parts.append(f'<circle cx="{place}" cy="{y - 4}" r="3" fill="{color}"/>')
        parts.append(_text(place + 8, y, format, "start"))
        place += 80
    parts.append(_text(place, y, "open: model held out; line: 1 spread", "start"))
    path.write_text("\n".join([*parts, "</svg>\n"]))
