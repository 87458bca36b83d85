"""Runs several commands one after another in one process: `python -m tests.cli.screens_in_one_process 'list' 'show 1'`.

A fresh interpreter for each screen would take longer than everything it prints.
"""

from __future__ import annotations

import shlex
import sys

from todoku.cli.main import cli
from todoku.core.errors import TodokuError

for line in sys.argv[1:]:
    print(f"$ todoku {line}", flush=True)
    try:
        cli.main(shlex.split(line), prog_name="todoku", standalone_mode=False)
    except SystemExit as exiting:
        print(f"(exit {exiting.code})")
    except TodokuError as error:
        print(f"todoku: {error}")
    print(flush=True)
