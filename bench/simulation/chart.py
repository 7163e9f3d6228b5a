"""Line charts as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_PANEL = (280, 220)
_MARGIN = (46, 34, 12, 44)  # left, top, right, bottom
_LEGEND = 26
_LETTER = 6.3  # about, at this size
_INK = "#1f2933"
_PALE = "#52606d"
_GRID = "#e4e7eb"


@dataclass(frozen=True, slots=True)
class Style:
    """How the lines of one name look in all panels."""

    name: str
    colour: str
    dashes: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Attributes:
        title: what it shows.
        x_label: what goes to the right, with its unit.
        x_ticks: where its values are written, the first and last one at the edges.
        y_ticks: likewise, upwards; in percent.
        lines: points for each style, in its order.
    """

    title: str
    x_label: str
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    lines: Sequence[Sequence[tuple[float, float]]]


def chart(description: str, panels: Sequence[Panel], styles: Sequence[Style]) -> str:
    """The panels side by side, above one legend; an SVG document."""
    width, height = _PANEL[0] * len(panels), _PANEL[1] + _LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11" role="img" '
        f'aria-label="{escape(description)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff" rx="8"/>',
        *(part for i, panel in enumerate(panels) for part in _panel(panel, styles, i * _PANEL[0])),
        *_legend(styles),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, styles: Sequence[Style], offset: int) -> list[str]:
    left, top, right, bottom = _MARGIN
    x0, x1 = offset + left, offset + _PANEL[0] - right
    y0, y1 = _PANEL[1] - bottom, top

    def x(value: float) -> float:
        first, last = panel.x_ticks[0], panel.x_ticks[-1]
        return x0 + (value - first) / (last - first) * (x1 - x0)

    def y(value: float) -> float:
        first, last = panel.y_ticks[0], panel.y_ticks[-1]
        return y0 + (min(value, last) - first) / (last - first) * (y1 - y0)

    parts = [f'<text x="{x0}" y="20" fill="{_INK}" font-weight="bold">{escape(panel.title)}</text>']
    for tick in panel.y_ticks:
        parts += [
            f'<path d="M{x0} {y(tick):.1f} H{x1}" stroke="{_GRID}"/>',
            f'<text x="{x0 - 6}" y="{y(tick) + 4:.1f}" fill="{_PALE}" text-anchor="end">'
            f"{tick:g} %</text>",
        ]
    parts += [
        f'<text x="{x(tick):.1f}" y="{y0 + 15}" fill="{_PALE}" text-anchor="middle">{tick:g}</text>'
        for tick in panel.x_ticks
    ]
    parts.append(
        f'<text x="{(x0 + x1) / 2}" y="{y0 + 31}" fill="{_PALE}" text-anchor="middle">'
        f"{escape(panel.x_label)}</text>"
    )
    for style, points in zip(styles, panel.lines, strict=True):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{style.colour}" '
            f'stroke-width="1.8" stroke-linejoin="round"{dashes}/>'
        )
    return parts


def _legend(styles: Sequence[Style]) -> list[str]:
    parts: list[str] = []
    x, y = float(_MARGIN[0]), _PANEL[1] + _LEGEND / 2 - 2
    for style in styles:
        dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
        parts += [
            f'<path d="M{x:.0f} {y} h22" stroke="{style.colour}" stroke-width="2.5"{dashes}/>',
            f'<text x="{x + 28:.0f}" y="{y + 4}" fill="{_INK}">{escape(style.name)}</text>',
        ]
        x += 28 + len(style.name) * _LETTER + 20
    return parts
