"""Writes docs/reference: one page for each public method and function, one for each class, all from the code itself.

`make reference` writes them; `tests/architecture/test_reference.py` compares. A page has the signature as it is in the
source, the docstring, the name of the async form, and links to the types it names.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, Final, is_typeddict

from tests.support.public import Documented, Parameterised, Public, signature, words, written

PLACE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"

HELD: Final = {
    "Answer": "done",
    "App": "box",
    "Batch": "batch",
    "Clock": "clock",
    "Context": "ctx",
    "DeadLetterCalls": "queue.dlq",
    "Deliveries": "box.deliveries",
    "FailedEvents": "events",
    "Flow": "ctx",
    "Handle": "handle",
    "Inbox": "box.inbox(…)",
    "Job": "job",
    "Ledger": "box.ledger",
    "Log": "ctx.log",
    "MessageCalls": "queue.messages",
    "Publisher": "outbox",
    "Queue": "queue",
    "Queues": "box.queues",
    "Ref": "ref",
    "Schedules": "box.schedules",
    "Workflow": "workflow",
    "Workflows": "box",
}
"""What the examples call an object of the class."""

CONSTRUCTED: Final = {
    "Abort", "App", "DeliveryError", "Done", "FailedEvents", "FlowControl", "IdempotencyMiddleware", "Limit", "Ref",
    "Retry", "Snooze", "Todoku",
}  # fmt: skip
"""Classes that people create objects of. Objects of the others are what calls return."""


GUIDES: Final = {
    "publishing": "App.publish App.publish_many Message PublishOptions App.connect App.migrate",
    "jobs": "App.job App.enqueue_many App.drain Job Call CallOptions JobOptions Handle Context Limit Retry Abort Snooze"
    " todoku.exponential todoku.linear todoku.table",
    "events": "App.on App.event App.route App.schema Destination Outgoing todoku.destination todoku.log",
    "hooks": "App.after App.batch App.chain App.batch_status Batch BatchStatus Ending HookOptions EndingOptions",
    "workflows": "App.flows Workflows Workflow WorkflowOptions Flow StepFailed",
    "schedules": "App.cron App.every App.schedule Schedules Schedule TimedOptions Timing",
    "once": "App.once App.inbox Ledger Inbox Answer Entry fastapi.once idempotency receiver",
    "ingest": "App.ingest Verifier ReceivedRequest Identity Challenge todoku.stripe todoku.github todoku.slack"
    " todoku.shopify todoku.standard_webhooks todoku.hmac",
    "http": "todoku.http",
    "brokers": "BrokerOptions todoku.kafka todoku.rabbitmq todoku.nats todoku.redis todoku.sqs todoku.pubsub",
    "operating": "App.worker App.replay Deliveries Delivery DeliveryFilter Page Queues Restriction Replayed ActResult",
    "encryption": "App.secrets Ref",
    "sign-in": "App.web viewer flask.dashboard",
    "observability": "Log Context.log Context.trace_send",
    "integrations": "App.lifespan fastapi flask sqlalchemy",
    "testing": "testing",
    "client": "client DeadLetterCalls MessageCalls Sending FailedEvent",
}
"""The guides, and the pages that lead to them: these, and those whose names begin with one of these and a dot."""


class Reference:
    """The pages of everything public."""

    def __init__(self, public: Public) -> None:
        self.classes, self.functions, self.aliases = public.classes, public.functions, public.aliases

    def pages(self) -> dict[str, str]:
        """Every page by the name of its file."""
        pages = {"README.md": self._index(), "types.md": self._types()}
        for one in self.classes.values():
            pages[f"{one.page}.md"] = self._class_page(one)
            for method in one.methods:
                pages[f"{one.page}.{method.name}.md"] = self._method_page(one, method)
        classes = {name.casefold() for name in pages}
        for name, (path, function) in self.functions.items():
            # Some file systems do not tell Published.md from published.md.
            pages[self._function_file(name, classes)] = self._function_page(path, name, function)
        return pages

    def _function_file(self, name: str, taken: set[str] | None = None) -> str:
        names = {f"{one.page}.md".casefold() for one in self.classes.values()} if taken is None else taken
        return f"{name}-function.md" if f"{name}.md".casefold() in names else f"{name}.md"

    def _function_page(self, path: str, name: str, function: Parameterised) -> str:
        imported = f"`from {path} import {function.name}`" if path != "todoku" else f"`todoku.{function.name}`"
        return page(
            name,
            imported,
            *body(function),
            self._keywords(function),
            self._see(function),
            guide(name),
            "[All](README.md)",
        )

    def _method_page(self, one: Documented, method: Parameterised) -> str:
        held = HELD.get(one.name)
        called = f"{held}.{method.name}(…)" if held else f"{one.page}.{method.name}(…)"
        coroutine = inspect.iscoroutinefunction(method.call)
        forms = [f"`{'await ' if coroutine else ''}{called}`"]
        if method.twin:
            forms.append(f"`await {called.replace(f'.{method.name}(', f'.{method.twin}(')}` in async code")
        links = f"[{one.page}]({one.page}.md) · [All](README.md)"
        heading = f"{one.page}.{method.name}"
        return page(
            heading, ", ".join(forms), *body(method), self._keywords(method), self._see(method), guide(heading), links
        )

    def _keywords(self, function: Parameterised) -> str:
        """The keywords behind `**options: Unpack[JobOptions]`."""
        rows = []
        for name in re.findall(r"Unpack\[(\w+)\]", " ".join(function.signatures)):
            kind = function.scope.get(name)
            if is_typeddict(kind):
                rows += [f"| `{key}` | {cell(written_kind(kind, key))} |" for key in kind.__annotations__]
        return "\n".join(["| keyword | type |", "|---|---|", *dict.fromkeys(rows)]) if rows else ""

    def _see(self, function: Parameterised) -> str:
        return self._linked(function.signatures, function.scope)

    def _linked(self, texts: list[str], scope: dict[str, Any]) -> str:
        links = []
        for name in words(texts):
            value = scope.get(name)
            if inspect.isclass(value) and value in self.classes:
                links.append(f"[{name}]({self.classes[value].page}.md)")
            elif name in self.aliases and value is not None and not inspect.isclass(value):
                links.append(f"[{name}](types.md)")
        return f"Types: {', '.join(links)}" if links else ""

    def _class_page(self, one: Documented) -> str:
        held = HELD.get(one.name)
        made = fenced([signature(one.name, inspect.signature(one.kind))]) if one.name in CONSTRUCTED else ""
        rows = [f"| `{a.name}` | {cell(a.kind)} | {a.doc or self._about(one, a.kind)} |" for a in one.attributes]
        table = "\n".join(["| attribute | type | |", "|---|---|---|", *rows]) if rows else ""
        methods = [self._row(one, method) for method in one.methods]
        calls = "\n".join(["| call | |", "|---|---|", *methods]) if methods else ""
        bases = [base for base in getattr(one.kind, "__orig_bases__", one.kind.__bases__) if base in self.classes]
        links = ", ".join(f"[{base.__name__}]({self.classes[base].page}.md)" for base in bases)
        above = f"Derives from {links}." if bases else ""
        kinds = self._linked([a.kind for a in one.attributes], one.scope)
        called = f"The examples call it `{held}`." if held and f"`{held}`" not in one.doc else ""
        return page(one.page, made, one.doc, called, above, table, calls, kinds, guide(one.page), "[All](README.md)")

    def _about(self, one: Documented, kind: str) -> str:
        """What the class of an attribute says of itself, where nothing else says it."""
        about = self.classes.get(one.scope.get(kind))
        return first(about.doc) if about else ""

    def _row(self, one: Documented, method: Parameterised) -> str:
        twin = f", `{method.twin}`" if method.twin else ""
        return f"| [`{method.name}`]({one.page}.{method.name}.md){twin} | {first(method.doc)} |"

    def _index(self) -> str:
        text = (
            "Every public class, method and function: its signature as the code has it, and what it promises. "
            "`make reference` writes these pages from the source, and a test compares them. "
            "[Public names](../public.md) has the names that `import todoku` promises; the guides are listed in the "
            "[README](../../README.md). [Types](types.md) explains the names that signatures use for types."
        )
        functions = [
            f"| [`{name}`]({self._function_file(name)}) | {first(function.doc)} |"
            for name, (_, function) in sorted(self.functions.items())
        ]
        classes = sorted(self.classes.values(), key=lambda one: one.page.lower())
        rows = [f"| [`{one.page}`]({one.page}.md) | {first(one.doc)} |" for one in classes]
        methods = []
        for one in classes:
            if one.methods:
                links = ", ".join(f"[`{m.name}`]({one.page}.{m.name}.md)" for m in one.methods)
                methods.append(f"| [`{HELD.get(one.name, one.page)}`]({one.page}.md) | {links} |")
        return page(
            "Reference", "\n".join(textwrap.wrap(text, 120, break_long_words=False)),
            "## Calls", "\n".join(["| of | |", "|---|---|", *methods]),
            "## Functions", "\n".join(["| | |", "|---|---|", *functions]),
            "## Classes", "\n".join(["| | |", "|---|---|", *rows]),
        )  # fmt: skip

    def _types(self) -> str:
        rows = [f"| `{name}` | {cell(text)} | {doc} |" for name, (text, doc) in sorted(self.aliases.items())]
        text = "Names that signatures use for types that are not classes."
        return page("Types", text, "\n".join(["| name | is | |", "|---|---|---|", *rows]), "[All](README.md)")


def written_kind(kind: type, key: str) -> str:
    """The type of a key of a TypedDict as it is written, also of one it inherits."""
    value = kind.__annotations__[key]
    return getattr(value, "__forward_arg__", None) or written(value)


def body(function: Parameterised) -> tuple[str, str]:
    return fenced(function.signatures), function.doc


def guide(name: str) -> str:
    """A link to the guide that explains what this page is about: the one that names the most of its name."""
    found = [
        (len(one), page) for page, names in GUIDES.items() for one in names.split() if f"{name}.".startswith(f"{one}.")
    ]
    return f"Guide: [{max(found)[1]}](../{max(found)[1]}.md)" if found else ""


def fenced(lines: list[str]) -> str:
    return "\n".join(["```python no-run: a signature", *lines, "```"])


def cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def first(doc: str) -> str:
    """The first paragraph of a docstring on one line, for a cell of a table."""
    return " ".join(doc.partition("\n\n")[0].split()).replace("|", "\\|")


def page(heading: str, *parts: str) -> str:
    return "\n\n".join([f"# {heading}", *(part for part in parts if part)]) + "\n"


def main() -> None:
    """Writes every page, and removes those that nothing public has any more."""
    pages = Reference(Public.of_todoku()).pages()
    PLACE.mkdir(exist_ok=True)
    for stale in set(PLACE.glob("*.md")) - {PLACE / name for name in pages}:
        stale.unlink()
    for name, text in pages.items():
        (PLACE / name).write_text(text, encoding="utf-8")
    print(f"docs/reference: {len(pages)} pages")


if __name__ == "__main__":
    main()
