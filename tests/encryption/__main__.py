"""Runs the program, and logs everything."""

from __future__ import annotations

import json
import sys

from tests.encryption import program
from todoku.engine.observability.log import configure_logging

if __name__ == "__main__":
    configure_logging("json", "debug")
    told = program.main(sys.argv[1])
    program.box.close()
    print(json.dumps(told))
