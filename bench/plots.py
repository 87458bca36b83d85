"""Bar charts as SVG, written by hand: a median as a bar, the spread of its rounds as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.judging import Middle

WIDTH, LABELS, NUMBERS, LINE, TOP = 720, 190, 130, 26, 56
OWN, OTHER, SPREAD, INK, PAPER = "#1f6feb", "#8b949e", "#24292f", "#24292f", "#ffffff"


@dataclass(frozen=True, slots=True)
class Length:
    """One bar."""

    label: str
    value: Middle
    own: bool


def chart(title: str, unit: str, bars: Sequence[Length], *, less_is_better: bool = False) -> str:
    """A chart, the best on top."""
    ordered = sorted(bars, key=lambda bar: bar.value.median, reverse=not less_is_better)
    most = max((bar.value.high for bar in ordered), default=1.0) or 1.0
    scale = (WIDTH - LABELS - NUMBERS) / most
    height = TOP + LINE * len(ordered) + 10
    better = "shorter is better" if less_is_better else "longer is better"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"',
        f'  font-family="sans-serif" font-size="13" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        f'<text x="10" y="22" font-size="16" fill="{INK}">{escape(title)}</text>',
        f'<text x="10" y="42" fill="{OTHER}">{escape(unit)}; median and spread of the rounds; {better}</text>',
    ]
    for place, bar in enumerate(ordered):
        lines += _bar(bar, TOP + place * LINE, scale)
    return "\n".join([*lines, "</svg>", ""])


def _bar(bar: Length, top: float, scale: float) -> list[str]:
    middle = top + LINE / 2
    low, high = LABELS + bar.value.low * scale, LABELS + bar.value.high * scale
    weight = ' font-weight="bold"' if bar.own else ""
    label, colour, length = escape(bar.label), OWN if bar.own else OTHER, max(1.0, bar.value.median * scale)
    return [
        f'<text x="{LABELS - 8}" y="{middle + 4:.1f}" text-anchor="end" fill="{INK}"{weight}>{label}</text>',
        f'<rect x="{LABELS}" y="{top + 4:.1f}" width="{length:.1f}" height="{LINE - 8}" fill="{colour}"/>',
        f'<line x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}" stroke="{SPREAD}"/>',
        f'<text x="{high + 8:.1f}" y="{middle + 4:.1f}" fill="{INK}">{number(bar.value.median)}</text>',
    ]


def number(value: float) -> str:
    """As people read it: thousands with commas, small ones with decimals."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
