"""A protocol has two implementations, and only the module of operations acts on deliveries."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.architecture.test_layers import FILES, ROOT, parsed, place

ONE_IMPLEMENTATION = {
    "HealthSource": "the daemon, which has it, is a layer above the API, which asks for it",
    "ReferencedSecret": "the engine, which has it, is a layer above core, which names it",
    "RequestDestination": "todoku.http has it, in a package beside the engine, which asks for it",
    "SearchSession": "the clients of search servers have it, in a package beside the engine, which asks for it",
    "DocumentSource": "the table of documents that a projection is kept equal to, which users bring",
    "ModelLike": "a model of pydantic, which users bring",
}
"""Protocols that invert a dependency or describe users' own classes."""

Members = dict[str, set[str]]


def classes() -> Iterator[ast.ClassDef]:
    for path in FILES:
        yield from (node for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef))


def bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0] for base in node.bases]


def public_methods(node: ast.ClassDef) -> set[str]:
    """Public methods and `__call__`. What is a property here may be a field there."""
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    fields = {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
    names = methods if "Protocol" in bases(node) else methods | fields
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def all_methods() -> tuple[Members, Members]:
    """(protocols, other classes), the latter with the methods and fields of their bases."""
    protocols: Members = {}
    own: Members = defaultdict(set)
    parents: dict[str, list[str]] = defaultdict(list)
    for node in classes():
        if "Protocol" in bases(node):
            protocols[node.name] = public_methods(node)
        else:
            own[node.name] |= public_methods(node)
            parents[node.name] += bases(node)

    def whole(name: str) -> set[str]:
        return own.get(name, set()).union(*(whole(base) for base in parents.get(name, ()) if base != name))

    return protocols, {name: whole(name) for name in list(own)}


def test_a_protocol_has_two_implementations() -> None:
    """One that is only called is a function's type, and any function implements it."""
    protocols, others = all_methods()
    assert "Database" in protocols
    methods = {name: members for name, members in protocols.items() if members - {"__call__"}}
    alone = {
        name: found
        for name, members in methods.items()
        if len(found := [other for other, has in others.items() if members <= has]) < 2
    }
    assert sorted(alone) == sorted(ONE_IMPLEMENTATION), alone


def test_only_operations_act_on_deliveries() -> None:
    """CLI, admin API, `/v2`, web and Python share one module for each act, so that it means the same everywhere."""
    acting = (
        "operations.py", "http/request_acts.py", "http/run_dead_letters.py", "edit.py", "new_message.py",
        "diagnostics/opened_message.py",
    )  # fmt: skip
    found = {
        place(path, node.lineno)
        for path in FILES
        if path not in (ROOT / "store/store.py", *(ROOT / "engine" / name for name in acting))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in ("acts", "letters") and "store" in ast.unparse(node.value)
    }
    assert found == set()
