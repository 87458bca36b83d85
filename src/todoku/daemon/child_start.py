"""What every child process of a daemon does first."""

from __future__ import annotations

import argparse
import signal

from todoku.engine.observability.log import configure_logging


def start_child(module: str, *numbers: str) -> argparse.Namespace:
    """Returns the arguments from the supervisor: `numbers`, such as descriptors, and the App's name and log format.

    Ctrl-C is ignored from here on, because the supervisor decides, and the log is set up.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    for name in ("fd", "number", *numbers):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--app")
    parser.add_argument("--log", default="auto")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging(given.log)
    return given
