"""Charts as SVG, made on the server: no script, no style attributes, so that the strictest policy allows them.

Colours are classes of `todoku.css`. Every chart has a text for those who cannot see it. The last ones are kept: all
viewers see the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
from markupsafe import Markup, escape


class Band(msgspec.Struct, frozen=True):
    """One series of a chart: its name, its colour as a class, and its values."""

    name: str
    colour: str
    values: tuple[float, ...]


@lru_cache(maxsize=2048)
def sparkline(values: tuple[float, ...], *, label: str, width: int = 120, height: int = 24) -> Markup:
    """Returns a small line of values over time."""
    if not values:
        return Markup("")
    top = max(values) or 1.0
    step = width / max(1, len(values) - 1)
    points = " ".join(
        f"{place * step:.1f},{height - 1 - value / top * (height - 2):.1f}" for place, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<polyline points="{points}" fill="none"/></svg>'
    ).format(w=width, h=height, label=label, points=points)


@lru_cache(maxsize=32)
def bars(
    bands: tuple[Band, ...], titles: tuple[str, ...], *, label: str, line: Band | None = None,
    width: int = 720, height: int = 140,
) -> Markup:  # fmt: skip
    """Returns stacked bars over time: one for each title, the bands from bottom to top, and a line across them."""
    totals = [sum(band.values[place] for band in bands) for place in range(len(titles))]
    across = () if line is None else line.values
    top, step = max([*totals, *across, 1.0]), width / max(1, len(titles))
    named_bands = bands if line is None else (*bands, line)
    shapes: list[str] = []
    for place, title in enumerate(titles):
        level = float(height)
        named = ", ".join(f"{band.name} {band.values[place]:,.0f}" for band in named_bands)
        shapes.append(f"<g><title>{escape(title)}: {escape(named)}</title>")
        for band in bands:
            size = band.values[place] / top * (height - 4)
            level -= size
            if size > 0:
                shapes.append(_rectangle(band.colour, place * step + 0.5, level, step - 1, size))
        shapes.append("</g>")
    if line is not None:
        shapes.append(_across(line, top, step, height))
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, label, Markup("".join(shapes)))  # noqa: S704 - every text in it was escaped


def _across(line: Band, top: float, step: float, height: int) -> str:
    points = " ".join(
        f"{(place + 0.5) * step:.1f},{height - value / top * (height - 4):.1f}"
        for place, value in enumerate(line.values)
    )
    colour = escape(line.colour)
    return f'<polyline class="{colour}" points="{points}" fill="none" vector-effect="non-scaling-stroke"/>'


def _rectangle(colour: str, x: float, y: float, width: float, height: float) -> str:
    size = f'width="{max(0.5, width):.1f}" height="{height:.1f}"'
    return f'<rect class="{escape(colour)}" x="{x:.1f}" y="{y:.1f}" {size}/>'


class Stretch(msgspec.Struct, frozen=True):
    """A bar of a waterfall, in seconds from any moment; a moment ends as it starts. Its colour is a class."""

    colour: str
    start: float
    end: float


def waterfall(stretches: Sequence[Stretch], *, width: int = 1000, height: int = 12) -> list[Markup]:
    """Returns one bar for each stretch, for the rows of a table, all on one scale.

    Long stretches are drawn shorter than they are, or a wait of days would hide an attempt of a second. The table says
    the times, so the bars are hidden from screen readers.
    """
    moments = sorted({moment for each in stretches for moment in (each.start, each.end)})
    places, at = dict[float, float](), 0.0
    for before, moment in zip([moments[0] if moments else 0.0, *moments], moments, strict=False):
        at += (moment - before) ** 0.4
        places[moment] = at
    scale = (width - 8) / at if at else 0.0
    return [_bar(each, places[each.start] * scale, places[each.end] * scale, width, height) for each in stretches]


def _bar(each: Stretch, left: float, right: float, width: int, height: int) -> Markup:
    shape = _rectangle(each.colour, left, 1, max(6.0, right - left), height - 2)
    return Markup(
        '<svg class="fall" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(width, height, Markup(shape))  # noqa: S704 - its only text was escaped
