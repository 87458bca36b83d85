"""Templates: Jinja2 with escaping, the words of three languages, and times as people say them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context, select_autoescape
from jinja2.runtime import Context
from markupsafe import Markup

from todoku.api.auth import Access
from todoku.api.problem import ErrorResponse
from todoku.core.byte_size import format_bytes
from todoku.core.control_characters import escape_controls
from todoku.core.scope import Scope
from todoku.web import charts
from todoku.web.assets import Assets
from todoku.web.language import LANGUAGES, translate
from todoku.web.view import PageAnswer, View
from todoku.web.viewer import NO_VIEWER, Viewer

TEMPLATES: Final = Path(__file__).parent / "templates"


class NavigationItem(msgspec.Struct, frozen=True):
    """A link of the navigation: its path, its English name, the key that goes there after `g`, and who sees it."""

    path: str
    name: str
    key: str
    access: Access = "read"


class Rendering:
    """Renders answers as HTML documents."""

    def __init__(self, assets: Assets, navigation: tuple[NavigationItem, ...], title: str = "") -> None:
        self._title, self._assets, self._navigation = title, assets, navigation
        self._environment = environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            finalize=_inert,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals.update(languages=LANGUAGES, charts=charts)
        environment.filters.update(number=_number, pretty=_pretty, lines=_lines, ago=_ago_filter, span=_span_filter)
        environment.filters["bytes"] = format_bytes

    def page(self, answer: PageAnswer, view: View, path: str, flash: str = "") -> str:
        """Returns the document of an answer."""
        around = self._around(view.language, view.prefix, path, view.viewer)
        # As values, not as `globals=`: a loaded template is shared by threads, and with it they would be.
        template = self._environment.get_template(answer.template)
        return template.render(around | answer.more, value=answer.value, view=view, flash=flash)

    def error(
        self, error: ErrorResponse, viewer: Viewer | None, *, language: str, prefix: str, path: str, request_id: str
    ) -> str:
        """Returns the document that says why a page cannot be shown."""
        around = self._around(language, prefix, path, viewer or NO_VIEWER)
        return self._environment.get_template("error.html").render(around, error=error, request_id=request_id, flash="")

    def _around(self, language: str, prefix: str, path: str, viewer: Viewer) -> dict[str, Any]:
        """Returns what every template has: translation, links, times in the viewer's language, and the viewer."""

        def url(to: str) -> str:
            return prefix + to

        def static(name: str) -> str:
            return f"{prefix}/static/{name}?v={self._assets.version(name)}"

        def csrf() -> Markup:
            return Markup('<input type="hidden" name="csrf" value="{}">').format(viewer.csrf)

        def can(scope: Scope) -> bool:
            return viewer.can(scope)

        say = partial(translate, language)
        return {
            "_": say,
            "url": url,
            "static": static,
            "csrf": csrf,
            "can": can,
            "viewer": viewer,
            "language": language,
            "here": path,
            "navigation": self._navigation,
            "site_title": self._title,
        }


def _inert(value: Any) -> Any:
    """Returns a value as it is printed: control characters of texts are escaped (SEC-12), None prints nothing."""
    if value is None:
        return ""
    return escape_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(text: str) -> Markup:
    """Returns a text of several lines, for `<pre>`: escaped line by line."""
    return Markup("\n").join(escape_controls(line) for line in text.splitlines())


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"


def _pretty(value: Any) -> Markup:
    """Returns a value as JSON on several lines. Numbers keep all their digits."""
    plain = msgspec.to_builtins(value)
    return _lines(json.dumps(plain, indent=2, ensure_ascii=False, sort_keys=False))


def _ago(say: Any, when: datetime | float | None) -> Markup:
    """Returns how long ago or ahead a moment is, with the moment itself as title."""
    if when is None:
        return Markup("–")
    moment = datetime.fromtimestamp(when, UTC) if isinstance(when, (int, float)) else when.astimezone(UTC)
    seconds = (datetime.now(UTC) - moment).total_seconds()
    text = (
        say("in {span}", span=_span(say, -seconds)) if seconds < -0.5 else say("{span} ago", span=_span(say, seconds))
    )
    exact = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, text)


@pass_context
def _ago_filter(context: Context, when: datetime | float | None) -> Markup:
    return _ago(context["_"], when)


@pass_context
def _span_filter(context: Context, seconds: float | None) -> str:
    return _span(context["_"], seconds)


_UNITS: Final = (("{n} d", 86_400.0), ("{n} h", 3600.0), ("{n} min", 60.0), ("{n} s", 1.0))


def _span(say: Any, seconds: float | None) -> str:
    """Returns a duration as people say it: `850 ms`, `12 s`, `3 min`."""
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    for unit, size in _UNITS:
        if seconds >= 2 * size or (size == 1.0 and seconds >= 1):
            number = seconds / size
            return str(say(unit, n=f"{number:.1f}" if size == 1.0 and number < 10 else f"{number:.0f}"))
    return str(say("{n} ms", n=f"{seconds * 1000:.0f}" if seconds >= 0.001 else f"{seconds * 1000:.1f}"))
