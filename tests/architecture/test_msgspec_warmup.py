"""What is decoded while threads run has been learned when its module was imported (todoku.core.msgspec_warmup)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "todoku"


def names(wanted: ast.expr | None) -> Iterator[str]:
    """The classes of ours in a type that is decoded: names with a capital, as they are written there."""
    for node in ast.walk(wanted) if wanted is not None else ():
        if isinstance(node, ast.Name) and node.id.lstrip("_")[:1].isupper():
            yield node.id


def calls() -> Iterator[tuple[str, ast.Call]]:
    """(name of the function, call) of every call there is."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func), node


def test_every_struct_that_is_decoded_was_learned_where_it_is_defined() -> None:
    decoded: set[str] = set()
    learned: set[str] = set()
    for function, call in calls():
        match function:
            case "msgspec.json.decode":
                decoded |= {name for word in call.keywords if word.arg == "type" for name in names(word.value)}
            case "msgspec.convert":
                decoded |= set(names(call.args[1]))
            case "warm_up":
                learned |= {name for argument in call.args for name in names(argument)}
    assert {"Settings", "HttpRequest"} <= decoded
    assert decoded - learned == set()
