"""A thread of a worker. One that ends by an error must not end silently: the worker could go on without it for ever."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from todoku.engine.observability.log import Log

OnFailure = Callable[[Exception], None]


def thread(name: str, run: Callable[[], None], on_failure: OnFailure) -> threading.Thread:
    """A thread, not started yet, that tells `on_failure` what it raised."""

    def watched() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody must hear of it
            where = traceback.extract_tb(error.__traceback__)[-1]
            Log(thread=name).error(
                "THREAD_FAILED", error_type=type(error).__name__, where=f"{where.filename}:{where.lineno}"
            )
            on_failure(error)

    return threading.Thread(target=watched, name=f"todoku {name}", daemon=True)
