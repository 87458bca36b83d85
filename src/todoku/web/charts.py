"""Charts as SVG, made on the server: no script, no style attributes, so that the strictest policy allows them.

Colours are classes of `todoku.css`. Every chart has a text for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markupsafe import Markup, escape


class Band(msgspec.Struct, frozen=True):
    """One series of a chart: its name, its colour as a class, and its values."""

    name: str
    colour: str
    values: Sequence[float]


def sparkline(values: Sequence[float], *, label: str, width: int = 120, height: int = 24) -> Markup:
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


def bars(
    bands: Sequence[Band], titles: Sequence[str], *, label: str, width: int = 720, height: int = 140
) -> Markup:  # fmt: skip
    """Returns stacked bars over time: one for each title, the bands from bottom to top."""
    totals = [sum(band.values[place] for band in bands) for place in range(len(titles))]
    top, step = max([*totals, 1.0]), width / max(1, len(titles))
    shapes: list[Markup] = []
    for place, title in enumerate(titles):
        parts, level = list[Markup](), float(height)
        for band in bands:
            size = band.values[place] / top * (height - 4)
            level -= size
            if size > 0:
                parts.append(_rectangle(band.colour, place * step + 0.5, level, step - 1, size))
        named = ", ".join(f"{band.name} {band.values[place]:,.0f}" for band in bands)
        shapes.append(Markup("<g><title>{}: {}</title>{}</g>").format(title, named, Markup("").join(parts)))
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, label, Markup("").join(shapes))


def _rectangle(colour: str, x: float, y: float, width: float, height: float) -> Markup:
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
        escape(colour), x, y, max(0.5, width), height
    )


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
    ).format(width, height, shape)
