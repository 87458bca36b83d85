"""Finds everything public of todoku: the names people import, and the classes that the signatures of these name.

`tests/support/reference.py` writes a page for each.
"""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Final, get_overloads

MODULES: Final[dict[str, tuple[str, ...] | None]] = {
    "todoku": None,
    "todoku.testing": None,
    "todoku.client": None,
    "todoku.integrations.fastapi": ("Publisher", "lifespans", "once", "publisher"),
    "todoku.integrations.flask": ("Todoku", "dashboard"),
    "todoku.integrations.idempotency": ("IdempotencyMiddleware", "by_authorization", "by_cookie", "by_credentials"),
    "todoku.integrations.receiver": ("ack", "dead", "retry"),
    "todoku.integrations.sqlalchemy": ("include_name", "include_object"),
    "todoku.web.viewer": ("Viewer",),
}
"""The modules that people import from, and the names they import; None: those of `__all__`."""

INTERNAL: Final = {
    "App": "store telemetry outbox declarations registry events plans sources receiver",
    "Call": "draft handle handler handle_of handle_or_none options payload",
    "Context": "claim join flush cancel",
    "Flow": "run cancel named_step",
    "Job": "outbox handler target route",
    "Ref": "encoded is_local",
    "Response": "without_content",
    "Worker": "share poke",
}
"""Names without an underscore that are for other parts of todoku: they may change at any time."""

UNSHOWN: Final = {
    "BackoffTable", "Endpoint", "Exponential", "GitHub", "Hmac", "Kafka", "Linear", "Nats", "Printer", "Pubsub",
    "Rabbitmq", "Redis", "Route", "Settings", "Shopify", "Slack", "Sqs", "StandardWebhooks", "Stripe", "Telemetry",
}  # fmt: skip
"""Classes that signatures name and users do not need by name: the functions that create their objects are shown."""

SAID: Final = {
    "App.asignal": ("", "`box.signal` in async code."),
    "App.jobs": ("Mapping[str, Job]", "The jobs declared here, by name."),
    "App.signal": ("", "Sends a value to a run: [Workflows.signal](Workflows.signal.md)."),
    "App.workflow": ("", "Makes an async function a workflow: [Workflows.workflow](Workflows.workflow.md)."),
}
"""The type and meaning of attributes that the source does not say where they are set."""


@dataclass(frozen=True)
class Parameterised:
    """A function or method, and what is written about it."""

    name: str
    call: Callable[..., Any]
    twin: str | None = None

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.call.__doc__ or "")

    @property
    def signatures(self) -> list[str]:
        forms = [inspect.signature(form) for form in get_overloads(self.call) or [self.call]]
        return [signature(self.name, self._returning(form)) for form in forms]

    def _returning(self, form: inspect.Signature) -> inspect.Signature:
        """What `@contextmanager` makes of a generator is used by `with`, and its annotation says Iterator."""
        if inspect.unwrap(self.call) is self.call:
            return form
        manager = str(form.return_annotation)
        for kind, wrapped in (("AsyncIterator", "AbstractAsyncContextManager"), ("Iterator", "AbstractContextManager")):
            manager = re.sub(rf"^{kind}\b", wrapped, manager)
        return form.replace(return_annotation=manager)

    @property
    def scope(self) -> dict[str, Any]:
        call = inspect.unwrap(self.call)
        return getattr(vars(call).get("todoku_implementation", call), "__globals__", {})


@dataclass(frozen=True)
class Attribute:
    """An attribute, a field or a property; `kind` is its type as it is written."""

    name: str
    kind: str
    doc: str = ""


@dataclass(frozen=True)
class Documented:
    """A public class. `prefix`: of its page, where another module has a class of that name."""

    kind: type
    prefix: str = ""

    @property
    def name(self) -> str:
        return self.kind.__name__

    @property
    def page(self) -> str:
        return f"{self.prefix}{self.name.lstrip('_')}"

    @property
    def doc(self) -> str:
        doc = vars(self.kind).get("__doc__") or ""
        return "" if doc.startswith(f"{self.name}(") else inspect.cleandoc(doc)

    @property
    def scope(self) -> dict[str, Any]:
        return vars(sys.modules[self.kind.__module__])

    @property
    def hidden(self) -> set[str]:
        return set(INTERNAL.get(self.name, "").split())

    @cached_property
    def methods(self) -> list[Parameterised]:
        """Public methods. The async form of one (`apublish` of `publish`) is on the page of the other."""
        found = {
            name: value for name, value in self._members() if inspect.isfunction(value) and name not in self.hidden
        }
        twins = {f"a{name}" for name in found if f"a{name}" in found}
        alone = {name: value for name, value in found.items() if name not in twins}
        return [
            Parameterised(name, value, f"a{name}" if f"a{name}" in twins else None) for name, value in alone.items()
        ]

    @cached_property
    def attributes(self) -> list[Attribute]:
        """Fields, properties and what the constructor sets."""
        if issubclass(self.kind, enum.Enum):
            return [Attribute(name, repr(member.value)) for name, member in self.kind.__members__.items()]
        found = {one.name: one for one in (*self._fields(), *self._set_by_constructor(), *self._properties())}
        shown = [one for name, one in found.items() if not name.startswith("_") and name not in self.hidden]
        return [Attribute(one.name, *SAID.get(f"{self.name}.{one.name}", (one.kind, one.doc))) for one in shown]

    def _members(self) -> Iterator[tuple[str, Any]]:
        """Its own, and those of bases that have no page because they are not public."""
        for one in reversed(self.kind.__mro__):
            if one is self.kind or (one.__module__.startswith("todoku.") and one.__name__.startswith("_")):
                yield from ((name, value) for name, value in vars(one).items() if not name.startswith("_"))

    def _properties(self) -> Iterator[Attribute]:
        for name, value in self._members():
            getter = value.fget if isinstance(value, property) else getattr(value, "func", None)
            if getter is not None:
                returned = inspect.signature(getter).return_annotation
                yield Attribute(name, str(returned), inspect.cleandoc(getter.__doc__ or "").partition("\n")[0])

    def _fields(self) -> Iterator[Attribute]:
        body = tree(self.kind).body
        for node, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield Attribute(node.target.id, ast.unparse(node.annotation), literal(following))

    def _set_by_constructor(self) -> Iterator[Attribute]:
        for function in tree(self.kind).body:
            if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                yield from self._assigned(function)

    def _assigned(self, function: ast.FunctionDef) -> Iterator[Attribute]:
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        kinds = {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation}
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                    yield Attribute(name, self._kind_of(value, kinds))
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                    values = value.elts if isinstance(value, ast.Tuple) else [value] * len(targets)
                    for one, each in zip(targets, values, strict=True):
                        if isinstance(one, ast.Attribute):
                            yield Attribute(one.attr, self._kind_of(each, kinds))
                case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                    yield Attribute(name, ast.unparse(annotation))
                case _:
                    pass

    def _kind_of(self, value: ast.expr, kinds: dict[str, str]) -> str:
        match value:
            case ast.Name(id=name):
                return kinds.get(name, "")
            case ast.Call(func=ast.Name(id=name)) if inspect.isclass(self.scope.get(name)):
                return name
            case _:
                return ""


@cache
def tree(kind: type) -> ast.ClassDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    return node


def literal(node: ast.AST | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(inspect.cleandoc(text).split())
        case _:
            return ""


def signature(name: str, given: inspect.Signature) -> str:
    """`def name(…) -> …`, as the source has it: on one line if it fits, else with one parameter on each."""
    parts, shown = [], [one for one in given.parameters.values() if one.name not in {"self", "cls"}]
    for before, one in zip([None, *shown], shown, strict=False):
        if one.kind is one.KEYWORD_ONLY and (before is None or before.kind < one.VAR_POSITIONAL):
            parts.append("*")
        if before is not None and before.kind is before.POSITIONAL_ONLY and one.kind is not one.POSITIONAL_ONLY:
            parts.append("/")
        parts.append(parameter(one))
    if shown and shown[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    unsaid = given.return_annotation is given.empty or name[0].isupper()
    end = ")" if unsaid else f") -> {written(given.return_annotation)}"
    line = f"{name}({', '.join(parts)}{end}"
    return line if len(line) <= 96 else "\n".join([f"{name}(", *(f"    {part}," for part in parts), end])


def words(texts: list[str]) -> list[str]:
    """The names in annotations."""
    return sorted({word for text in texts for word in re.findall(r"\b[A-Za-z_]\w*\b", text)})


def parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is one.empty else f": {written(one.annotation)}"
    if one.default is one.empty:
        return f"{stars}{one.name}{kind}"
    return f"{one.name}{kind}{' = ' if kind else '='}{default(one.default)}"


def written(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def default(value: Any) -> str:
    """A value as it is written: functions by name, and no addresses."""
    text = getattr(value, "__name__", None) or repr(value)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


@dataclass
class Public:
    """Everything public: what `MODULES` have, and from there what signatures name."""

    functions: dict[str, tuple[str, Parameterised]] = field(default_factory=dict)
    classes: dict[type, Documented] = field(default_factory=dict)
    aliases: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of_todoku(cls) -> Public:
        found = cls()
        for path, names in MODULES.items():
            module = import_module(path)
            prefix = f"{path.rpartition('.')[2]}."
            for name in names or module.__all__:
                found._add(prefix, path, name, getattr(module, name))
        pending = list(found.classes.values())
        for _, function in list(found.functions.values()):
            pending += found._follow(function.signatures, function.scope)
        while pending:
            one = pending.pop()
            pending += found._follow([attribute.kind for attribute in one.attributes], one.scope)
            for method in one.methods:
                pending += found._follow(method.signatures, method.scope)
        return found

    def _add(self, prefix: str, path: str, name: str, value: Any) -> None:
        if inspect.isclass(value):
            own = "" if path == "todoku" else prefix
            self.classes.setdefault(value, Documented(value, own))
        else:
            self.functions[f"{prefix}{name}"] = (path, Parameterised(name, value))

    def _follow(self, texts: list[str], scope: dict[str, Any]) -> list[Documented]:
        """The classes of todoku that these annotations name and that were not known; its type aliases are noted."""
        new = []
        for name in words(texts):
            value = scope.get(name)
            if not inspect.isclass(value):
                self._note_alias(name, value)
            elif value.__module__.startswith("todoku.") and value not in self.classes and name not in UNSHOWN:
                self.classes[value] = Documented(value)
                new.append(self.classes[value])
        return new

    def _note_alias(self, name: str, value: Any) -> None:
        if value is not None and name not in self.aliases and not hasattr(builtins, name):
            defined = alias_source(name, value)
            if defined is not None:
                self.aliases[name] = defined


def alias_source(name: str, value: Any) -> tuple[str, str] | None:
    """How todoku defines a type alias: the text of its assignment, and what is said of it. None: it does not."""
    for path, module in sorted(sys.modules.items()):
        if not path.startswith("todoku.") or vars(module).get(name) is not value:
            continue
        body = module_tree(module).body
        for node, following in zip(body, [*body[1:], None], strict=True):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=text) if target == name:
                    variable = isinstance(text, ast.Call)  # TypeVar("R"), ParamSpec("P")
                    return None if variable else (ast.unparse(text), literal(following))
                case ast.ImportFrom(names=names):
                    for alias in names:
                        if alias.asname == name and alias.name != name:
                            return alias_source(alias.name, value)
                case _:
                    pass
    return None


@cache
def module_tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))
