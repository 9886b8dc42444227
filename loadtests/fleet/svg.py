"""Two kinds of charts as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#7b4ea3", "#8d8741", "#3c3c3c", "#00798c", "#c06014")
_WIDTH = 640
_LEFT = 150
_FONT = 'font-family="sans-serif" font-size="12"'

Points = Sequence[tuple[float, float]]


def colour(position: int) -> str:
    return _COLOURS[position % len(_COLOURS)]


def bars(title: str, values: Mapping[str, tuple[float, float]], unit: str) -> str:
    """A pair of bars for each name: the second, larger value is drawn pale behind the first."""
    top = max((max(pair) for pair in values.values()), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 130) / top
    parts = []
    for position, (name, (first, second)) in enumerate(values.items()):
        y = 34 + 22 * position
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            _bar(y, second * scale, colour(position), 0.35),
            _bar(y, first * scale, colour(position), 1.0),
            f'<text x="{_LEFT + max(first, second) * scale + 6:.1f}" y="{y + 12}">'
            f"{first:.3g} / {second:.3g} {escape(unit)}</text>",
        ]
    return _svg(title, 42 + 22 * len(values), parts)


def curves(title: str, lines: Mapping[str, Points], x_label: str) -> str:
    """Lines over a logarithmic x axis; points with x of 0 or less are left out."""
    shown = {name: [(math.log10(x), y) for x, y in points if x > 0] for name, points in lines.items()}
    every = [point for points in shown.values() for point in points]
    if not every:
        return ""
    left, right = math.floor(min(x for x, _ in every)), math.ceil(max(x for x, _ in every))
    top = max(y for _, y in every) or 1.0
    frame = _Frame(left, max(right, left + 1), top)
    parts = frame.axes(x_label)
    for position, (name, points) in enumerate(shown.items()):
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour(position)}" stroke-width="1.6">'
            f"<title>{escape(name)}</title></polyline>"
        )
        parts.append(
            f'<text x="{_WIDTH - 6}" y="{34 + 15 * position}" text-anchor="end" '
            f'fill="{colour(position)}">{escape(name)}</text>'
        )
    return _svg(title, frame.height + 42, parts)


class _Frame:
    height = 260

    def __init__(self, left: float, right: float, top: float) -> None:
        self._left, self._right, self._top = left, right, top

    def x(self, value: float) -> float:
        return 60 + (value - self._left) / (self._right - self._left) * (_WIDTH - 200)

    def y(self, value: float) -> float:
        return self.height - value / self._top * (self.height - 30)

    def axes(self, x_label: str) -> list[str]:
        parts = []
        for decade in range(int(self._left), int(self._right) + 1):
            x = self.x(decade)
            parts.append(f'<line x1="{x:.1f}" y1="30" x2="{x:.1f}" y2="{self.height}" stroke="#ddd"/>')
            parts.append(
                f'<text x="{x:.1f}" y="{self.height + 16}" text-anchor="middle">{10.0**decade:g}</text>'
            )
        for step in range(5):
            value = self._top * step / 4
            y = self.y(value)
            parts.append(f'<line x1="60" y1="{y:.1f}" x2="{_WIDTH - 140}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="54" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        middle = 60 + (_WIDTH - 200) / 2
        parts.append(
            f'<text x="{middle}" y="{self.height + 34}" text-anchor="middle">{escape(x_label)}</text>'
        )
        return parts


def _bar(y: float, width: float, fill: str, opacity: float) -> str:
    return (
        f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="16" fill="{fill}" fill-opacity="{opacity}"/>'
    )


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" {_FONT} role="img">'
        f'<text x="8" y="14" font-weight="bold">{escape(title)}</text>{"".join(parts)}</svg>'
    )
