"""Flask, SQLite, cron, a limit per key: every night each customer's report is exported, one at a time per customer.

flask --app reports run            the pages
flask --app reports todoku run     the workers, which also fire the schedule
"""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from flask import Flask, Response, jsonify, request

import todoku
from todoku.integrations.flask import Todoku

DATABASE = Path("reports.db")
CUSTOMERS = ("acme", "zen")

box = todoku.App(f"sqlite:///{DATABASE}")
queue = Todoku(box=box)


def database() -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(DATABASE, timeout=30))


@box.job(per_key=todoku.Limit(concurrency=1), max_attempts=3)
def export(customer: str, report: str) -> None:
    note(customer, report, "begins")
    time.sleep(0.05)  # what the customer's own server takes; it serves one request at a time
    note(customer, report, "ends")


@box.cron(os.environ.get("NIGHTLY", "0 3 * * *"), tz="Europe/Berlin")
def nightly(ctx: todoku.Context) -> None:
    for customer in CUSTOMERS:
        night = f"night of {ctx.scheduled_at:%Y-%m-%d %H:%M:%S}"
        export.using(key=customer, idempotency_key=f"{customer} {night}").enqueue(customer, night)


def note(customer: str, report: str, what: str) -> None:
    with database() as db, db:
        db.execute("insert into steps (customer, report, what) values (?, ?, ?)", (customer, report, what))


def create_app() -> Flask:
    app = Flask("reports")
    queue.init_app(app)

    @app.cli.command("prepare")
    def prepare() -> None:
        """Create the tables: todoku's and ours."""
        box.migrate()
        with database() as db, db:
            db.execute("create table if not exists orders (customer text, report text)")
            db.execute("create table if not exists steps (customer text, report text, what text)")

    @app.post("/reports/<customer>")
    def order(customer: str) -> tuple[Response, int]:
        report = request.args["report"]
        with database() as db, db:  # the order and its job: one commit, or neither
            db.execute("insert into orders values (?, ?)", (customer, report))
            job = export.using(tx=db, key=customer).enqueue(customer, report)
        return jsonify(job=str(job.id)), 202

    @app.get("/steps")
    def steps() -> Response:
        with database() as db:
            return jsonify(db.execute("select customer, report, what from steps order by rowid").fetchall())

    return app


app = create_app()
