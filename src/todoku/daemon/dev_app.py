"""The App that `todoku dev` runs, as its worker process imports it: the user's App, or an empty one.

It prints one line on standard output for each attempt to send a request.
"""

from __future__ import annotations

import sys
from typing import Final

from todoku.app import App
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.daemon.terminal import is_request, print_attempts


def _load() -> App:
    name = find_app_name()
    box = App() if name is None else load_app(name)
    print_attempts(box, sys.stdout, is_request)
    return box


box: Final = _load()
