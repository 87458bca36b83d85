"""`python -m tests.model [--deep]`: the figures and tables of docs/model.md. `… H6` tells the traces of a hole."""

from __future__ import annotations

import sys

from tests.model.fixes import Fixes
from tests.model.hole import Hole
from tests.model.holes import HOLES
from tests.model.model import Model
from tests.model.scopes import DEEP, SCOPES, Scope
from tests.model.search import look_for, search
from tests.model.sentences import tell


def main(arguments: list[str]) -> None:
    """Print what was asked for."""
    numbers = [argument for argument in arguments if not argument.startswith("-")]
    if numbers:
        for hole in HOLES:
            if hole.number.rstrip("+") in numbers:
                print(f"{hole.number} {hole.title}, without {', '.join(hole.out)}\n{_story(hole)}\n")
        return
    print("| scope | states | steps | depth | seconds |\n|---|---:|---:|---:|---:|")
    for scope in (*SCOPES, *(DEEP if "--deep" in arguments else ())):
        print(_figures(scope), flush=True)
    print("\n| hole | without | breaks | steps |\n|---|---|---|---:|")
    for hole in HOLES:
        print(hole.row())


def _figures(scope: Scope) -> str:
    report, budget = search(Model(scope.scenario)), scope.scenario.budget
    faults = ", ".join(f"{count} {kind}" for kind, count in budget._asdict().items() if count)
    result = "" if report.violation is None else f" **{report.violation.text}**"
    row = f"{report.states:,} | {report.steps:,} | {report.depth} | {report.seconds:.1f}"
    return f"| {scope.scenario.name} ({faults}){result} | {row} |"


def _story(hole: Hole) -> str:
    model = Model(hole.scenario, Fixes().without(*hole.out))
    violation = look_for(hole.breaks, model).violation
    return tell(model, violation) if violation else "nothing breaks"


if __name__ == "__main__":
    main(sys.argv[1:])
