"""The daemon's HTML page: counts and the newest deliveries. One document, no assets, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from html import escape
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.control_characters import escape_controls
from todoku.core.duration import relative_time
from todoku.store.deliveries import Delivery

STATES: Final = {
    "pending": "waiting for a worker",
    "sending": "being executed",
    "succeeded": "arrived",
    "failed": "waiting to be tried again",
    "aborted": "dead letters",
}

_COLUMNS: Final = ("changed", "topic", "destination", "status", "attempts", "reason", "error", "correlation id")


class PageContent(msgspec.Struct, frozen=True):
    """The content of the page."""

    title: str
    state: str
    notes: tuple[str, ...]
    counts: dict[str, int]
    deliveries: tuple[Delivery, ...]
    problem: str
    dead: tuple[Delivery, ...] = ()
    """The newest dead letters, which stay in sight while newer deliveries push them out of the table."""
    tracebacks: dict[int, str] = {}
    """Of the last failed attempt of deliveries, by their number."""
    correlations: dict[UUID, str] = {}
    """The correlation ids, by message id."""


_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
header { display: flex; flex-wrap: wrap; gap: 0 1rem; align-items: baseline; }
h1 { font-size: 1.4rem; margin: 0; } h1 small { font-weight: normal; color: var(--soft); }
.where { color: var(--soft); overflow-wrap: anywhere; }
.badge { border-radius: 1rem; padding: .1rem .7rem; color: #fff; background: #2a7d46; }
.badge.not { background: #b3261e; }
h2 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
ul.counts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; padding: 0; }
ul.counts li { list-style: none; border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .9rem; }
ul.counts b { display: block; font-size: 1.6rem; font-variant-numeric: tabular-nums; }
ul.counts span { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: normal; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.id { color: var(--soft); overflow-wrap: anywhere; max-width: 12rem; }
td.error { color: var(--soft); overflow-wrap: anywhere; max-width: 26rem; }
.succeeded { color: #2a7d46; } .aborted { color: #b3261e; } .failed { color: #b26a00; } .sending { color: #1b66c9; }
pre { border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; overflow-x: auto; }
"""

# Fetches the page again and replaces <main>, so that escaping and rendering happen only on the server. Not while a
# traceback is open, which would close.
_SCRIPT: Final = """
setInterval(async () => {
  if (document.hidden || document.querySelector("details[open]")) return;
  try {
    const text = await (await fetch(location.href, {cache: "no-store"})).text();
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (fresh) document.querySelector("main").replaceWith(fresh);
  } catch { document.querySelector(".badge").textContent = "no answer"; }
}, 1000);
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


CSP: Final = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Allows only the style and the script above, whatever a topic or an error text contains."""

_EMPTY: Final = """<p>Nothing yet. Publish something, in your own transaction, and it appears here:</p>
<pre>box.publish("order.created", {"amount": 42}, tx=db)</pre>"""


def page(content: PageContent) -> str:
    """Returns the HTML document."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>todoku</title>
<style>{_STYLE}</style>
<noscript><meta http-equiv="refresh" content="2"></noscript>
</head>
<body>
<main>
<header>
<h1>todoku <small lang="ja">届く</small></h1> {_badge(content)} <span class="where">{_text(content.title)}</span>
</header>
{_counts(content)}
{_dead_letters(content)}
{_table(content)}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _badge(content: PageContent) -> str:
    notes = ", ".join(content.notes)
    text = "ready" if not notes else f"{content.state}: {notes}"
    return f'<span class="badge{" not" if notes else ""}">{_text(text)}</span>'


def _counts(content: PageContent) -> str:
    if not content.counts:
        return ""
    tiles = "".join(
        f'<li><b class="{state}">{content.counts.get(state, 0):,}</b>{state} <span>{meaning}</span></li>'
        for state, meaning in STATES.items()
    )
    return f'<ul class="counts">{tiles}</ul>'


def _table(content: PageContent) -> str:
    if content.problem:
        return f"<p>{_text(content.problem)}</p>"
    if not content.deliveries:
        return _EMPTY
    return f"<h2>Newest deliveries</h2>\n{_rows(content, content.deliveries)}"


def _dead_letters(content: PageContent) -> str:
    if not content.dead:
        return ""
    newest = content.dead[0].id
    advice = f"<code>todoku show {newest}</code> says more, <code>todoku replay {newest}</code> sends it again."
    return f"<h2>Dead letters</h2>\n{_rows(content, content.dead)}\n<p>{advice}</p>"


def _rows(content: PageContent, deliveries: tuple[Delivery, ...]) -> str:
    rows = "\n".join(_row(content, delivery) for delivery in deliveries)
    titles = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead>\n<tbody>{rows}</tbody></table></div>'


def correlation_of(delivery: Delivery, known: dict[UUID, str]) -> str | None:
    """Returns the correlation id of a delivery's message."""
    return None if delivery.message_id is None else known.get(delivery.message_id)


def _row(content: PageContent, delivery: Delivery) -> str:
    traceback = content.tracebacks.get(delivery.id)
    status = delivery.status if delivery.status in STATES else "pending"
    return (
        f"<tr><td>{_ago(delivery.updated_at)}</td><td>{_text(delivery.topic)}</td>"
        f'<td>{_text(delivery.destination)}</td><td class="{status}">{status}</td>'
        f'<td class="number">{delivery.tries}</td>'
        f'<td>{_text(delivery.reason)}</td><td class="error">{_text(delivery.error)}{_details(traceback)}</td>'
        f'<td class="id">{_text(correlation_of(delivery, content.correlations))}</td></tr>'
    )


def _details(traceback: str | None) -> str:
    if traceback is None:
        return ""
    lines = "\n".join(map(_text, traceback.splitlines()))
    return f"<details><summary>traceback</summary><pre>{lines}</pre></details>"


def _text(value: str | None) -> str:
    return escape(escape_controls(value or ""))


def _ago(moment: datetime) -> str:
    return relative_time(max(0.0, (datetime.now(UTC) - moment).total_seconds()))


def delivery_fields(delivery: Delivery, correlation: str | None = None) -> dict[str, object]:
    """Returns the fields of a delivery for the JSON of the page. No payload."""
    return {
        "id": delivery.id,
        "message_id": delivery.message_id,
        "topic": delivery.topic,
        "destination": delivery.destination,
        "status": delivery.status,
        "attempts": delivery.attempts,
        "max_attempts": delivery.max_attempts,
        "reason": delivery.reason,
        "error": delivery.error,
        "created_at": delivery.created_at,
        "updated_at": delivery.updated_at,
        "next_run_at": delivery.next_run_at,
        "correlation_id": correlation,
    }
