"""The application: what is ingested, what is done with it, who is told, and what is kept of what failed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

import todoku
from payments_example import mail
from payments_example.database import make_tables, open_engine
from payments_example.events import StripeEvent, change_of, participant_of
from payments_example.payments import Applied, apply, unpaid
from payments_example.settings import Settings
from todoku.client import Queue, connect, failed_events

SOURCE: Final = "stripe"
RETRIES: Final = 3
"""Of the seed: four attempts, 1, 2 and 4 s apart, then a dead letter."""


class Payments:
    """The App with everything declared, and the example's own tables beside it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.box = todoku.App(settings.database)
        self.engine = open_engine(settings.database)
        self.sessions = sessionmaker(self.engine)
        self._retrying: dict[str, Any] = {
            "max_retries": RETRIES,
            "backoff": todoku.exponential(base=settings.first_wait),
        }
        self._declare_mail()
        if settings.mode == "embedded":  # else the queue has the dead letters: `todoku dlq-sync` fetches them
            self._declare_ingest()
            failed_events(self.box, topic=f"{SOURCE}.**")

    def prepare(self) -> None:
        """Make what is missing in the database: todoku's tables, and the example's."""
        self.box.migrate()
        make_tables(self.engine)

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()
        self.box.close()

    def queue(self) -> Queue:
        """The queue: this App, or the one elsewhere. While that is away, messages wait on this disk.

        With SKIP_QSTASH_IN_TEST=1 there is none: what is published is recorded by the caller itself.
        """
        if self.settings.mode == "embedded":
            return connect(self.box)
        settings, here = self.settings, {self.settings.worker_url: self._record_here}
        return connect(
            settings.queue_url, token=settings.queue_token, fallback="spool", spool=settings.spool, handlers=here,
            metrics=self.box,
        )  # fmt: skip

    def _record_here(self, message: todoku.Outgoing) -> None:
        with self.sessions.begin() as tx:
            self.record(tx, msgspec.json.decode(message.payload, type=StripeEvent))

    # ------------------------------------------------------------------------------------------ an event

    def record(
        self, tx: Session, event: StripeEvent, log: Any = None, *, correlation: str | None = None
    ) -> Applied | None:
        """One event in one transaction: the payment, that it was seen, and the mail about it. None: not ours.

        Abort: trying again would not help. Whatever the database raises: it may. `correlation`: for the mail, where
        this is no handler of todoku's, which would inherit it.
        """
        change = change_of(event)
        if change is None:
            return None
        done = apply(tx, change)
        if done.to is not None and done.status is not None:
            subject = mail.SUBJECTS[done.status]
            headers = None if correlation is None else {"X-Correlation-Id": correlation}
            self.write.using(tx=tx, headers=headers).enqueue(to=done.to, subject=subject, intent=change.intent)
        if log is not None:
            log.bind(participant_id=done.participant_id).info("payment", status=change.status, result=done.result)
        return done

    def _declare_ingest(self) -> None:
        secrets = self.settings.stripe_secrets
        self.box.ingest(SOURCE, todoku.stripe(secrets=secrets), topic=f"{SOURCE}.{{type}}", model=StripeEvent)

        @self.box.on(f"{SOURCE}.**", name="record", transactional=True, **self._retrying)
        def record(ctx: todoku.Context, event: StripeEvent) -> None:
            # Bound before anything can fail: the line of a failed attempt says which event it was, and whose.
            log = ctx.log.bind(event_id=event.id, participant_id=participant_of(event))
            self.record(ctx.session(Session), event, log)

    # --------------------------------------------------------------------------------------------- mail

    def _declare_mail(self) -> None:
        settings = self.settings

        @self.box.job("mail", queue="mail", timeout=30, **self._retrying)
        def write(ctx: todoku.Context, to: str, subject: str, intent: str) -> None:
            ctx.log.bind(intent=intent)
            mail.send(settings, to=to, subject=subject, intent=intent, key=ctx.idempotency_key)

        self.write: todoku.Job[..., Any] = write

        @self.box.cron("0 9 * * *", tz="Asia/Tokyo", name="remind", transactional=True)
        def remind(ctx: todoku.Context) -> None:
            """Whoever could not pay is asked again, once a day, however often this runs."""
            tx, day = ctx.session(Session), (ctx.scheduled_at or datetime.now(UTC)).date()
            for intent, to in unpaid(tx):
                key = f"remind:{intent}:{day}"
                self.write.using(tx=tx, idempotency_key=key).enqueue(to=to, subject=mail.REMINDER, intent=intent)


UNAVAILABLE: Final = (DBAPIError, todoku.DatabaseUnavailable)
"""What is raised when the database cannot do it now: trying again may help."""
