"""`python -m todoku.testing.armed …`: the program `todoku`, with failpoints armed, for crash tests.

The environment variable TODOKU_FAILPOINTS names them: `settle.after_commit=kill,claim.before_commit=lose`. The worker
processes of a daemon that is started this way are armed too. `todoku` itself ignores the variable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from todoku.core.errors import InvalidSetting
from todoku.store.failpoint import arm, kill, lose, stop

_VARIABLE: Final = "TODOKU_FAILPOINTS"
_HERE: Final = "todoku.testing.armed"
_CHILD: Final = "todoku.daemon.child"
_ACTIONS: Final[Mapping[str, Callable[[], None]]] = {"lose": lose, "kill": kill, "stop": stop}


def arm_from(environ: Mapping[str, str]) -> None:
    """Arms the failpoints that TODOKU_FAILPOINTS names, until the process ends. InvalidSetting."""
    for item in filter(None, environ.get(_VARIABLE, "").split(",")):
        name, _, action = item.strip().partition("=")
        if action not in _ACTIONS:
            raise InvalidSetting(f"{action!r} is no failpoint action", hint=f"use one of {', '.join(_ACTIONS)}")
        arm(name, _ACTIONS[action])


def main() -> None:
    """Arms, then runs `todoku` with the arguments given, or the worker process of a daemon."""
    try:
        arm_from(os.environ)
    except InvalidSetting as error:
        sys.exit(f"todoku: {error}")
    if sys.argv[1:2] == [_CHILD]:
        from todoku.daemon.child import main as run_child  # noqa: PLC0415 - and not the command line

        del sys.argv[1]
        run_child()
    else:
        from todoku.cli.main import main as run_command  # noqa: PLC0415
        from todoku.daemon.start import Daemon  # noqa: PLC0415

        Daemon.child = (_HERE, _CHILD)
        run_command()


if __name__ == "__main__":
    main()
