"""`make example NAME=payments`: the API and a daemon that works, until Ctrl-C, and what to try."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import todoku
from payments_example.settings import Settings, read_settings
from payments_example.show.parts import Part, Stripe, free_port
from payments_example.show.stripe_side import intent_event

_DEVELOPMENT = {"ADMIN_TOKEN": "admin", "TODOKU_HTTP_LOOPBACK": "1"}


def greeting(settings: Settings, url: str, daemon: str) -> str:
    """What to try."""
    return f"""\
payments is running on {url} (database {settings.database.rpartition("@")[2]}, {settings.mode}), its daemon on {daemon}

In another terminal, in the directory examples/payments:

  ../../.venv/bin/python -m payments_example pay pi_1 --participant p1     posts an event as Stripe does
  curl {url}/payments/pi_1
  ../../.venv/bin/python -m payments_example pay pi_3 --participant p3 --failed    reminded every morning
  ../../.venv/bin/python -m payments_example pay pi_2                      says not whose it is: a dead letter
  curl -u ana:{settings.admin_token} {url}/admin/failed                        or look at {url}/admin/

Mail goes to {settings.smtp_url or f"files in {settings.outbox}/"}. Ctrl-C stops both.
"""


def main() -> int:
    """Returns the exit code."""
    try:
        if sys.argv[1:2] == ["pay"]:
            return pay(sys.argv[2:])
        return run()
    except todoku.InvalidSetting as error:
        sys.stderr.write(f"payments: {error}\n")
        return 2


def pay(words: list[str]) -> int:
    """`pay INTENT [--participant ID] [--failed]`: Stripe tells that it was paid, or that it could not be."""
    if not words:
        sys.stderr.write("payments: pay INTENT [--participant ID] [--failed]\n")
        return 2
    settings = read_settings(os.environ)
    kind = "payment_intent.payment_failed" if "--failed" in words else "payment_intent.succeeded"
    words = [word for word in words if word != "--failed"]
    participant = words[2] if words[1:2] == ["--participant"] and len(words) > 2 else None
    path = "/ingest/stripe" if settings.mode == "embedded" else "/webhooks/stripe"
    now = int(time.time())
    event = intent_event(
        f"evt_{words[0]}_{now}", kind, words[0], at=now, participant=participant,
        email=f"{participant or 'somebody'}@example.com",
    )  # fmt: skip
    Stripe(f"http://127.0.0.1:{settings.port}{path}", settings.stripe_secrets[0]).post([event], seconds=10)
    sys.stdout.write(f"{event['id']} was taken\n")
    return 0


def run() -> int:
    """Until somebody stops it."""
    os.environ.update({name: value for name, value in _DEVELOPMENT.items() if name not in os.environ})
    settings, stopped = read_settings(os.environ), []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    here, port = Path.cwd(), free_port()
    daemon = Part(
        "daemon", here, {"TODOKU_PORT": str(port)}, port, "todoku", "run", "--app", "payments_example.box:box"
    )
    api = Part("api", here, {"DAEMON_URL": daemon.url}, settings.port, "payments_example.server")
    parts = [api, daemon]
    try:
        api.start("/payments/none")
        daemon.start("/readyz")
        if settings.mode == "queue":  # its dead letters are elsewhere: into the table, and told of by alerts
            parts.append(Part("sync", here, {}, 0, *sync_words(settings)))
            parts[-1].launch()
        sys.stdout.write(greeting(settings, api.url, daemon.url))
        sys.stdout.flush()
        while not stopped and all(part.lives for part in parts):
            time.sleep(0.1)
    finally:
        for part in reversed(parts):
            part.stop()
    return 0 if stopped else 1


def sync_words(settings: Settings, every: str = "30s") -> tuple[str, ...]:
    """The program that watches the dead letters of a queue elsewhere."""
    return ("todoku", "dlq-sync", "--db", settings.database, "--watch", every)


if __name__ == "__main__":
    sys.exit(main())
