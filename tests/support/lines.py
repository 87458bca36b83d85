"""The log lines of a run's processes: each is JSON, and each settled attempt has exactly the fields of DESIGN §8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import msgspec

from todoku.engine.observability.log_line import SettledLine

_FIELDS = list(SettledLine.__struct_fields__)


def line_problems(
    files: Sequence[tuple[Path, bool]],
    errors: frozenset[str],
    failed: Mapping[int, int],
    *,
    unsure: Container[int] = (),
) -> tuple[int, list[str]]:
    """How many settled attempts were told, and what is wrong with which line. (file, whether its process was killed)

    `errors` are events of level error that this run may cause; `failed`, how many failed attempts of each delivery are
    on record; `unsure`, deliveries whose worker could not know: the database was away before it could tell.
    """
    wrong: list[str] = []
    told: Counter[tuple[int, str]] = Counter()
    number = 0
    for path, killed in files:
        *lines, torn = path.read_text("utf-8", errors="replace").split("\n")
        if torn and not killed:
            wrong.append(f"{path.name}: half a line: {torn}")
        for line in lines:
            settled = _checked(line, errors, wrong)
            if settled is not None:
                number += 1
                told[settled.outbox_id, settled.status] += 1
    for (id, status), times in told.items():
        # A worker that could not ask says "failed" of an attempt that committed: that line stands in for its success.
        doubtful = id in unsure and not told[id, "succeeded"]
        true = 1 if status == "succeeded" else failed.get(id, 0) + doubtful
        if times > true:
            wrong.append(f"{times} lines say that {id} was settled as {status}, and {true} can be true")
    return number, wrong


def _checked(line: str, errors: frozenset[str], wrong: list[str]) -> SettledLine | None:
    """The line, if it is one of a settled attempt."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
        if fields.get("event") != "settled":
            if fields.get("level") == "error" and fields.get("event") not in errors:
                wrong.append(f"an error: {line}")
            return None
        settled = msgspec.json.decode(line, type=SettledLine)
    except msgspec.MsgspecError as error:
        wrong.append(f"{error}: {line}")
        return None
    if list(fields) != _FIELDS:
        wrong.append(f"not exactly these fields in this order: {line}")
    return settled
