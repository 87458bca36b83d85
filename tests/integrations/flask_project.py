"""A Flask application as somebody has it; tests/integrations/test_flask.py runs it and its commands."""

from __future__ import annotations

import os

from flask import Flask, current_app, jsonify, request
from sqlalchemy import create_engine, text

import todoku
from todoku.integrations.flask import Todoku

box = todoku.App("sqlite:///never-opened.db")
queue = Todoku(box=box)


@box.job
def welcome(user_id: int) -> None:
    """Needs the application's context."""
    with current_app.extensions["engine"].begin() as db:
        db.execute(text("update users set welcomed = welcomed + 1 where id = :id"), {"id": user_id})


@box.job
async def welcome_later(user_id: int) -> None:
    """Needs it, too, and is async."""
    with current_app.extensions["engine"].begin() as db:
        db.execute(text("update users set welcomed = welcomed + 10 where id = :id"), {"id": user_id})


def create_app(url: str | None = None, **config: object) -> Flask:
    """The application. `url` is where its rows and its jobs are."""
    app = Flask("flask_project")
    url = url or os.environ["SHOP_DATABASE"]
    app.config.update(TODOKU_DATABASE=url, **config)
    app.extensions["engine"] = engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    queue.init_app(app)

    @app.post("/users/<int:id>")
    def create(id: int) -> object:
        with engine.begin() as db:
            db.execute(text("insert into users values (:id, 0)"), {"id": id})
            job = welcome_later if request.args.get("later") else welcome
            job.using(tx=db).enqueue(id)
            if request.args.get("fail"):
                raise ValueError("after the enqueue")
        return jsonify(id=id)

    return app
