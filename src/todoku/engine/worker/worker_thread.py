"""The threads of a worker. A thread that fails must not end silently: the worker would go on without it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from todoku.engine.observability.log import Log

OnFailure = Callable[[Exception], None]


def create_thread(name: str, run: Callable[[], None], on_failure: OnFailure) -> threading.Thread:
    """Creates a thread, not started yet, that logs the exception that ends it and passes it to `on_failure`."""

    def guarded() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - every error ends the worker
            where = traceback.extract_tb(error.__traceback__)[-1]
            Log(thread=name).error(
                "THREAD_FAILED", error_type=type(error).__name__, where=f"{where.filename}:{where.lineno}"
            )
            on_failure(error)

    return threading.Thread(target=guarded, name=f"todoku {name}", daemon=True)
