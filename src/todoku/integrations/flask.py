"""todoku in a Flask application: configuration, commands, and handlers that run in the application context.

    box = todoku.App()
    queue = Todoku(box=box)

    def create_app():
        app = Flask(__name__)
        app.config["TODOKU_DATABASE"] = "postgresql://localhost/shop"
        queue.init_app(app)
        return app

| key | meaning |
|---|---|
| TODOKU_DATABASE, TODOKU_SCHEMA | database of the App; without them, the one it was created with |
| TODOKU_WORKER | True: each process of the application also runs a worker, from its first request on |
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
from todoku.integrations.asgi_thread import AsgiThread, WsgiRequest
from todoku.integrations.program import run_program, wrap_call

try:
    from flask import Blueprint, Flask, Response, abort, current_app, has_app_context, request
    from flask.cli import ScriptInfo
except ImportError as error:
    raise ImportError('Flask is not installed: pip install "todoku[flask]"') from error

_NAME = "todoku.integrations.flask:box"
_ADMISSION = "todoku.admission"
_LARGEST = 4 << 20


class Todoku:
    """The extension. `app` may be given later to `init_app`. Without a `box` it creates an App."""

    def __init__(self, app: Flask | None = None, box: App | None = None) -> None:
        self.box = App() if box is None else box
        self._app: Flask | None = None
        self._worker_thread: _WorkerThread | None = None
        self._starting = threading.Lock()
        self.box.registry.wrap(self._in_context)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Reads the configuration, and adds the command `flask todoku …` to the application."""
        self._app = app
        url, schema = app.config.get("TODOKU_DATABASE"), app.config.get("TODOKU_SCHEMA")
        if url is not None or schema is not None:
            current = self.box.settings
            self.box.connect(url or current.database, schema=schema or (current.schema if url is None else None))
        app.extensions["todoku"] = self
        app.cli.add_command(_command())
        if app.config.get("TODOKU_WORKER", False):
            app.before_request(self.start)

    def start(self) -> None:
        """Starts a worker in this process, which runs until the process ends. A second call does nothing."""
        with self._starting:  # two requests may be the first at once
            if self._worker_thread is None or not self._worker_thread.is_own_process:
                self._worker_thread = _WorkerThread(self.box)
                atexit.register(self._worker_thread.stop)

    def stop(self) -> None:
        """Drains the worker and waits for its end."""
        if self._worker_thread is not None:
            self._worker_thread.stop()
            self._worker_thread = None

    def _in_context(self, target: Target) -> Target:
        return wrap_call(target, self._wrap_sync, self._wrap_async)

    def _wrap_sync(self, call: Callable[[Context], Any]) -> Callable[[Context], Any]:
        def wrapped(context: Context) -> Any:
            with self._application().app_context():
                return call(context)

        return wrapped

    def _wrap_async(self, call: Callable[[Context], Any]) -> Callable[[Context], Any]:
        async def wrapped(context: Context) -> Any:
            with self._application().app_context():
                return await call(context)

        return wrapped

    def _application(self) -> Flask:
        if self._app is None:
            raise InvalidSetting("todoku has no Flask application yet", hint="call init_app(app) before you run jobs")
        return self._app


class _WorkerThread:
    """A worker in a thread. It belongs to one process: a forked process does not have it."""

    def __init__(self, box: App) -> None:
        self._pid = os.getpid()
        self._worker: Worker = box.worker()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._worker.run()), name="todoku", daemon=True)
        self._thread.start()

    @property
    def is_own_process(self) -> bool:
        """Whether it runs in this process."""
        return self._pid == os.getpid()

    def stop(self) -> None:
        """Drains the worker and waits for its end."""
        if self.is_own_process:
            self._worker.drain()
            self._thread.join()


def dashboard(box: App, *, auth: Callable[[], Any] | None = None, name: str = "todoku_dashboard") -> Blueprint:
    """The dashboard as a blueprint: `app.register_blueprint(dashboard(box), url_prefix="/todoku")`.

    `auth` is called in the context of each request, and returns who makes it: a `todoku.web.viewer.Viewer`, a role, or
    None. Without it people sign in to the dashboard itself.
    """
    thread = AsgiThread(lambda: box.web(auth=None if auth is None else _asked))
    blueprint = Blueprint(name, __name__)

    def serve(path: str = "") -> Response:
        full = request.script_root + request.path
        more = {} if auth is None else {_ADMISSION: auth()}
        found = thread.call(WsgiRequest(
            method=request.method, path=full, root=full[: len(full) - len(path)].rstrip("/"),
            query=request.query_string, headers=tuple(request.headers.items()), body=_body(), scheme=request.scheme,
            client=request.remote_addr or "", more=more,
        ))  # fmt: skip
        return Response(found.body, found.status, list(found.headers))

    for rule in ("/", "/<path:path>"):
        blueprint.add_url_rule(rule, "serve", serve, methods=["GET", "HEAD", "POST"])
    return blueprint


def _body() -> bytes:
    if (request.content_length or 0) > _LARGEST:
        abort(413)
    return request.get_data()


async def _asked(request: Any) -> Any:
    """What `auth` returned, in the scope of the request."""
    return request.scope[_ADMISSION]


def _command() -> click.Command:
    """The program `todoku` as a Flask command. All arguments are passed on to it."""
    settings = {"ignore_unknown_options": True, "help_option_names": []}

    @click.command("todoku", context_settings=settings, short_help="Run a todoku command on this application.")
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def todoku(ctx: click.Context, arguments: tuple[str, ...]) -> None:
        info = ctx.ensure_object(ScriptInfo)
        application = info.load_app()
        if info.app_import_path is not None:  # worker processes import the application by it
            os.environ["FLASK_APP"] = info.app_import_path
        run_program(application.extensions["todoku"].box, arguments, app=_NAME)

    return todoku


def __getattr__(name: str) -> Any:
    """`box`: the App of the current Flask application, or of the one that FLASK_APP names."""
    if name != "box":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    application = current_app if has_app_context() else ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    return application.extensions["todoku"].box
