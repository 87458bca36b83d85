"""todoku in a Flask application: configuration, commands, handlers in the application's context.

    box = todoku.App()
    queue = Todoku(box=box)

    def create_app():
        app = Flask(__name__)
        app.config["TODOKU_DATABASE"] = "postgresql://localhost/shop"
        queue.init_app(app)
        return app

| key | meaning |
|---|---|
| TODOKU_DATABASE, TODOKU_SCHEMA | where the App lives; without them, where it was made to |
| TODOKU_WORKER | True: each process of the application runs a worker beside it, from its first request on |
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

import click

from todoku.app import App
from todoku.core.errors import InvalidSetting
from todoku.engine.context import Context
from todoku.engine.registry import Target
from todoku.engine.worker.worker import Worker
from todoku.integrations.around import with_call
from todoku.integrations.program import run_program

try:
    from flask import Flask, current_app, has_app_context
    from flask.cli import ScriptInfo
except ImportError as error:
    raise ImportError('Flask is not installed: pip install "todoku[flask]"') from error

_NAME = "todoku.integrations.flask:box"


class Todoku:
    """The extension. `app` may come later, by `init_app`; without a `box` it makes one of its own."""

    def __init__(self, app: Flask | None = None, box: App | None = None) -> None:
        self.box = App() if box is None else box
        self._app: Flask | None = None
        self._beside: _Beside | None = None
        self._starting = threading.Lock()
        self.box.registry.wrap(self._in_context)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Take the configuration, and give the application its commands: `flask todoku …`."""
        self._app = app
        url, schema = app.config.get("TODOKU_DATABASE"), app.config.get("TODOKU_SCHEMA")
        if url is not None or schema is not None:
            here = self.box.settings
            self.box.connect(url or here.database, schema=schema or (here.schema if url is None else None))
        app.extensions["todoku"] = self
        app.cli.add_command(_command())
        if app.config.get("TODOKU_WORKER", False):
            app.before_request(self.start)

    def start(self) -> None:
        """Run a worker beside the application, in this process, until it ends; a second call does nothing."""
        with self._starting:  # two first requests may come at once
            if self._beside is None or not self._beside.here:
                self._beside = _Beside(self.box)
                atexit.register(self._beside.stop)

    def stop(self) -> None:
        """Drain that worker and wait for its end."""
        if self._beside is not None:
            self._beside.stop()
            self._beside = None

    def _in_context(self, target: Target) -> Target:
        return with_call(target, self._plain, self._awaits)

    def _plain(self, call: Callable[[Context], Any]) -> Callable[[Context], Any]:
        def called(context: Context) -> Any:
            with self._application().app_context():
                return call(context)

        return called

    def _awaits(self, call: Callable[[Context], Any]) -> Callable[[Context], Any]:
        async def called(context: Context) -> Any:
            with self._application().app_context():
                return await call(context)

        return called

    def _application(self) -> Flask:
        if self._app is None:
            raise InvalidSetting("todoku has no Flask application yet", hint="call init_app(app) before you run jobs")
        return self._app


class _Beside:
    """A worker in a thread of its own. It belongs to one process: after a fork there is none."""

    def __init__(self, box: App) -> None:
        self._pid = os.getpid()
        self._worker: Worker = box.worker()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._worker.run()), name="todoku", daemon=True)
        self._thread.start()

    @property
    def here(self) -> bool:
        """Whether this is the process it runs in."""
        return self._pid == os.getpid()

    def stop(self) -> None:
        """Drain."""
        if self.here:
            self._worker.drain()
            self._thread.join()


def _command() -> click.Command:
    """The program `todoku`, as a command of Flask's. Its options are its own, so everything is handed on."""
    settings = {"ignore_unknown_options": True, "help_option_names": []}

    @click.command("todoku", context_settings=settings, short_help="The program `todoku` on this application.")
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def todoku(ctx: click.Context, arguments: tuple[str, ...]) -> None:
        info = ctx.ensure_object(ScriptInfo)
        application = info.load_app()
        if info.app_import_path is not None:  # worker processes find the application by it
            os.environ["FLASK_APP"] = info.app_import_path
        run_program(application.extensions["todoku"].box, arguments, app=_NAME)

    return todoku


def __getattr__(name: str) -> Any:
    """`box`: that of the application which FLASK_APP names, or which is at work already."""
    if name != "box":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    application = current_app if has_app_context() else ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    return application.extensions["todoku"].box
