"""Sessions of browsers that are signed in to the dashboard. The database has hashes of their ids only."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, cast

import msgspec

from todoku.core.role import Role, role
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.database import Database, Tx

SessionKind = Literal["user", "token", "setting", "oidc"]
"""What a person signed in with: a password, an API token, the token of the settings, or an OpenID provider."""


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Who signed in. `subject` identifies the person among those of the same kind; `name` is shown and audited."""

    kind: SessionKind
    subject: str
    name: str
    role: Role


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session that has not ended."""

    person: Person
    csrf: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime

    def __repr__(self) -> str:
        return f"<SessionRow {self.person!r}>"


class SessionStore:
    """The sessions of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, hash: str, person: Person, csrf: str, signed: Signed, *, lasts: float, replaces: str | None) -> None:
        """Stores a session for `lasts` seconds, and ends the one with the hash `replaces`. Audited."""

        def work(tx: Tx) -> None:
            if replaces is not None:
                tx.rows("end_session", hash=replaces)
            tx.rows("add_session", hash=hash, csrf=csrf, lasts=lasts, **msgspec.structs.asdict(person))
            target = f"{person.kind}:{person.subject}" if person.kind != "setting" else "token:TODOKU_TOKEN"
            tx.rows("audit", by=signed.by, why=signed.why, action="sign in", targets=[target])

        self._database.write("session", work)

    def by_hash(self, hash: str, *, idle: float) -> SessionRow | None:
        """The session with this hash; None if it has ended, was not used for `idle` seconds, or lost its owner."""
        rows = self._database.read(lambda tx: tx.rows("session", hash=hash, idle=idle))
        return next(map(_row, rows), None)

    def record_use(self, hash: str, *, every: float) -> None:
        """Records that a session was used now, unless a use in the last `every` seconds is recorded."""
        self._database.write("session", lambda tx: tx.rows("see_session", hash=hash, every=every))

    def end(self, hash: str) -> bool:
        """Ends a session. Returns whether there was one."""
        return bool(self._database.write("session", lambda tx: tx.rows("end_session", hash=hash)))

    def end_all(self, person: Person) -> int:
        """Ends all sessions of a person, in all browsers. Returns how many."""
        return len(
            self._database.write(
                "session", lambda tx: tx.rows("end_sessions", kind=person.kind, subject=person.subject)
            )
        )


def _row(row: tuple[str, str, str, str, str, float, float, float]) -> SessionRow:
    kind, subject, name, named, csrf, created, seen, expires = row
    return SessionRow(
        person=Person(kind=cast("SessionKind", kind), subject=subject, name=name, role=role(named)),
        csrf=csrf,
        created_at=moment(created),
        seen_at=moment(seen),
        expires_at=moment(expires),
    )
