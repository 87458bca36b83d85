"""The tree of todoku's errors. Each has a hint, which says what the reader can do about it.

TodokuError
├── InvalidMessage          the message cannot be published; nothing was stored
│   ├── NoRoute             no route matches the topic
│   └── UnknownJob          the App has no job of that name
├── IdempotencyConflict     the key was used before, with another body
├── InProgress              another caller is working on the key at this moment
├── JobAborted              the awaited job became a dead letter
├── StepFailed              a step of a workflow has no attempt left
├── AmbiguousMessage        the message has several deliveries, and the caller did not choose one
├── NoSuchMessage           the message was rolled back, is not committed yet, or was pruned
├── ResultNotKept           the job does not store its results
├── CannotOpen              encrypted data cannot be read: shredded, changed, or its master key is not configured
├── IllegalTransition       the state machine of deliveries does not have this step
├── InvalidSetting          a setting is invalid
├── InvalidAct              the operation cannot be done as requested; nothing was changed
│   ├── NotThere            its object does not exist
│   └── RunEnded            the workflow run has ended, or does not exist
├── CannotStart             a daemon cannot start: its port or file is in use, or a package is not installed
├── CaptureError            a capture cannot go on: its stream cannot be read, or a table cannot be captured
├── QueueUnavailable        a remote queue did not answer in time; whether it has the message is unknown
├── QueueRefused            a remote queue refused the request
├── TransactionError        the call cannot join the transaction of `tx=`
│   ├── NoTransaction       the connection has no open transaction
│   ├── UnsupportedConnection
│   ├── WrongDatabase       the connection belongs to another database than the App
│   └── BlockingCall        a blocking call inside a running event loop
└── StoreError              the database cannot do what was requested
    ├── UnknownDatabase     the URL names no supported database
    ├── DatabaseUnavailable unreachable, gone, read-only: the outcome of the call is unknown
    ├── DatabaseBusy        a lock could not be taken in time; nothing was changed
    ├── SchemaError         not migrated, changed by hand, or newer than this program
    ├── MixedSQLite         two SQLite libraries in one process on one file
    └── UnsafeJournal       WAL was requested with a SQLite build that can lose acknowledged writes

DurabilityWarning           a caller's connection acknowledges commits that are not on disk yet
"""

from __future__ import annotations

from typing import Final


class TodokuError(Exception):
    """Base class of todoku's errors; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.hint = hint


class InvalidMessage(TodokuError, ValueError):
    """The message cannot be published; nothing was stored."""


class NoRoute(InvalidMessage):
    """No route matches the topic, so the message would have no delivery."""


class UnknownJob(InvalidMessage, KeyError):
    """The App has no job of that name."""

    __str__ = Exception.__str__  # KeyError would show the repr of its message


class InProgress(TodokuError):
    """Another caller is working on the key at this moment; nothing was done."""


class JobAborted(TodokuError):
    """The awaited job became a dead letter; `reason` says why."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class NoSuchMessage(TodokuError, LookupError):
    """The message does not exist: it was rolled back, is not committed yet, or its retention has passed."""


class StepFailed(TodokuError):
    """A step of a workflow has no attempt left. A run that does not catch it becomes a dead letter, STEP_FAILED."""

    def __init__(self, message: str, *, hint: str = "", step: str = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step


class AmbiguousMessage(TodokuError, LookupError):
    """The message has several deliveries, and the caller did not choose one; `destinations` has their names."""

    def __init__(self, message: str, *, hint: str = "", destinations: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.destinations = destinations


class ResultNotKept(TodokuError):
    """The caller requested a result of a job that does not store its results."""


class CannotOpen(TodokuError):
    """Encrypted data cannot be read; `reason` is SHREDDED, BAD_CIPHERTEXT, UNKNOWN_MASTER_KEY or BAD_MASTER_KEY."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "BAD_CIPHERTEXT") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class IdempotencyConflict(TodokuError):
    """The idempotency key was used before, with another body."""


class IllegalTransition(TodokuError):
    """The state machine of deliveries does not have this step."""


class InvalidSetting(TodokuError, ValueError):
    """A setting is invalid."""


class InvalidAct(TodokuError, ValueError):
    """The operation cannot be done as requested. Nothing was changed."""


class NotThere(InvalidAct, LookupError):
    """The object of the operation (a queue, schedule, group or token) does not exist. Nothing was changed."""


class RunEnded(InvalidAct):
    """Nothing can be added to the workflow run: it has ended, or does not exist. Nothing was changed."""


class CannotStart(TodokuError):
    """A daemon cannot start: its port or file is in use, or a package is not installed."""


class CaptureError(TodokuError):
    """A capture cannot go on; `reason` is one of `todoku.core.capture.Reason`."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "BAD_STREAM") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class QueueUnavailable(TodokuError):
    """A remote queue did not answer in time. Whether it has the message is unknown: repeat it with the same id."""


class QueueRefused(TodokuError):
    """A remote queue refused the request; `status` is the status of its response."""

    def __init__(self, message: str, *, hint: str = "", status: int = 400) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class TransactionError(TodokuError):
    """The call cannot join the transaction of `tx=`."""


class NoTransaction(TransactionError):
    """The connection passed as `tx=` has no open transaction."""


class UnsupportedConnection(TransactionError, TypeError):
    """todoku does not support the type of `tx=`."""


class WrongDatabase(TransactionError):
    """`tx=` belongs to another database than the App."""


class BlockingCall(TransactionError):
    """A blocking call was made inside a running event loop."""


class StoreError(TodokuError):
    """The database cannot do what was requested."""


class UnknownDatabase(StoreError, ValueError):
    """The URL names no database that todoku supports."""


class DatabaseUnavailable(StoreError):
    """The database is unreachable, gone or read-only. Whether the call took effect is unknown."""


class DatabaseBusy(StoreError):
    """A lock could not be taken in time. Nothing was changed."""


class SchemaError(StoreError):
    """The schema is missing, was changed by hand, or is newer than this program."""


class MixedSQLite(StoreError):
    """Two SQLite libraries in one process have the same file open, which loses acknowledged writes."""


class UnsafeJournal(StoreError):
    """WAL was requested with a SQLite build that can lose acknowledged writes in WAL."""


DATABASE_ERRORS: Final = (DatabaseUnavailable, SchemaError, MixedSQLite, UnknownDatabase, UnsafeJournal)
"""Errors of the database and not of what was to be stored: it would refuse any other message, too."""


class DurabilityWarning(UserWarning):
    """A connection passed as `tx=` acknowledges commits that are not on disk yet."""
