"""Every error todoku raises, as one tree. Each carries a hint: what the reader can do about it.

TodokuError
├── InvalidMessage          what was to be published is not acceptable; nothing was stored
│   ├── NoRoute             no route takes the topic
│   └── UnknownJob          the App has no job of that name
├── IdempotencyConflict     the key was used before, with another body
├── InProgress              the key is being worked on by somebody else at this moment
├── JobAborted              the job one waits for became a dead letter
├── NoSuchMessage           there is no such message: rolled back, not committed yet, or pruned
├── ResultNotKept           the result of a job that keeps none was asked for
├── CannotOpen              what is encrypted cannot be read: shredded, changed, or its master key is not here
├── IllegalTransition       a delivery was asked to make a step the state machine does not have
├── InvalidSetting          a setting cannot be read
├── InvalidAct              what a person asked for cannot be done as said; nothing was changed
│   └── NotThere            what it is about does not exist
├── CannotStart             a daemon cannot start here: its port or file is taken, or a part is not installed
├── QueueUnavailable        a queue elsewhere gave no answer in time; whether it has the message is unknown
├── QueueRefused            a queue elsewhere answered, and said no
├── TransactionError        `tx=` cannot be joined as asked
│   ├── NoTransaction       the connection has no open transaction
│   ├── UnsupportedConnection
│   ├── WrongDatabase       the connection belongs to another database than the App
│   └── BlockingCall        a blocking call inside a running event loop
└── StoreError              the database cannot do what was asked
    ├── UnknownDatabase     the URL names no supported database
    ├── DatabaseUnavailable unreachable, gone, read-only: the outcome of the call is unknown
    ├── DatabaseBusy        a lock was not to be had in time; nothing was changed
    ├── SchemaError         not migrated, changed by hand, or newer than this program
    ├── MixedSQLite         two SQLite libraries in one process on one file
    └── UnsafeJournal       WAL asked of a SQLite build that can lose acknowledged writes

DurabilityWarning           a caller's connection acknowledges what is not on disk yet
"""

from __future__ import annotations


class TodokuError(Exception):
    """Any error of todoku; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.hint = hint


class InvalidMessage(TodokuError, ValueError):
    """What was to be published is not acceptable; nothing was stored."""


class NoRoute(InvalidMessage):
    """No route takes the topic: publishing it would deliver it to nobody."""


class UnknownJob(InvalidMessage, KeyError):
    """The App has no job of that name."""

    __str__ = Exception.__str__  # a KeyError shows its message as a literal


class InProgress(TodokuError):
    """The key is being worked on by somebody else at this moment; nothing was done."""


class JobAborted(TodokuError):
    """The job one waits for became a dead letter; `reason` says why."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class NoSuchMessage(TodokuError, LookupError):
    """There is no such message: it was rolled back, is not committed yet, or its retention has passed."""


class ResultNotKept(TodokuError):
    """The result of a job was asked for that keeps none."""


class CannotOpen(TodokuError):
    """What is encrypted cannot be read; `reason` is SHREDDED, BAD_CIPHERTEXT, UNKNOWN_MASTER_KEY or BAD_MASTER_KEY."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "BAD_CIPHERTEXT") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class IdempotencyConflict(TodokuError):
    """The idempotency key was used before, with another body."""


class IllegalTransition(TodokuError):
    """A delivery was asked to make a step that the state machine does not have."""


class InvalidSetting(TodokuError, ValueError):
    """A setting cannot be read."""


class InvalidAct(TodokuError, ValueError):
    """What a person asked for cannot be done as said. Nothing was changed."""


class NotThere(InvalidAct, LookupError):
    """What was asked about does not exist: no such queue, schedule, group, token. Nothing was changed."""


class CannotStart(TodokuError):
    """A daemon cannot start here: its port or file is taken, or a part is not installed."""


class QueueUnavailable(TodokuError):
    """A queue elsewhere gave no answer in time. Whether it has the message is unknown: repeat it with the same id."""


class QueueRefused(TodokuError):
    """A queue elsewhere answered, and said no; `status` is that of its answer."""

    def __init__(self, message: str, *, hint: str = "", status: int = 400) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class TransactionError(TodokuError):
    """`tx=` cannot be joined as asked."""


class NoTransaction(TransactionError):
    """The connection handed in as `tx=` has no open transaction to join."""


class UnsupportedConnection(TransactionError, TypeError):
    """`tx=` is of a kind todoku does not know."""


class WrongDatabase(TransactionError):
    """`tx=` belongs to another database than the App."""


class BlockingCall(TransactionError):
    """A blocking call was made inside a running event loop."""


class StoreError(TodokuError):
    """The database cannot do what was asked."""


class UnknownDatabase(StoreError, ValueError):
    """The database URL names nothing todoku can open."""


class DatabaseUnavailable(StoreError):
    """The database is unreachable, gone or read-only. Whether the call took effect is unknown."""


class DatabaseBusy(StoreError):
    """A lock was not to be had in time. Nothing was changed."""


class SchemaError(StoreError):
    """The schema is missing, was changed by hand, or is newer than this program."""


class MixedSQLite(StoreError):
    """Two SQLite libraries in one process have the same file open, which loses acknowledged writes."""


class UnsafeJournal(StoreError):
    """WAL was asked of a SQLite build that can lose acknowledged writes in WAL."""


class DurabilityWarning(UserWarning):
    """A connection handed in as `tx=` acknowledges commits that are not on disk yet."""
