"""todoku's tables as Django sees them: to be looked at. They are made, and changed, by todoku alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.db import models

from todoku.integrations.django.project import option
from todoku.store.columns import EPOCH


def table(name: str) -> str:
    """A table of todoku's where it is: Django has no word for schemas."""
    schema = option("SCHEMA")
    return name if schema is None else f'"{schema}"."{name}"'


class Moment(models.Field):
    """A time: `timestamptz` on PostgreSQL, microseconds since 1970 on SQLite."""

    def get_internal_type(self) -> str:
        """What Django takes it for: as a DateTimeField it would read SQLite's numbers as texts."""
        return "BigIntegerField"

    def from_db_value(self, value: Any, *_rest: Any) -> datetime | None:
        """A time, whatever the database keeps."""
        return EPOCH + timedelta(microseconds=value) if isinstance(value, int) else value

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: ARG002
        """A time to compare with."""
        if isinstance(value, datetime) and connection.vendor == "sqlite":
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return (aware - EPOCH) // timedelta(microseconds=1)
        return value


class Message(models.Model):
    """A message: topic and key; what is inside shows the admin, masked."""

    seq = models.BigIntegerField(primary_key=True)
    id = models.UUIDField(unique=True)
    topic = models.TextField()
    key = models.TextField(null=True)
    created_at = Moment()

    class Meta:
        """Not Django's to change."""

        managed = False
        db_table = table("todoku_message")

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class Delivery(models.Model):
    """A message on its way to a destination: what is unfinished, and dead letters."""

    id = models.BigIntegerField(primary_key=True)
    message = models.ForeignKey(Message, models.DO_NOTHING, db_column="message_seq", db_constraint=False)
    destination = models.TextField()
    queue = models.TextField()
    priority = models.SmallIntegerField()
    status = models.TextField()
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    lost = models.IntegerField()
    replay_count = models.IntegerField()
    next_run_at = Moment()
    updated_at = Moment()
    reason = models.TextField(null=True)
    error = models.TextField(null=True)

    class Meta:
        """Not Django's to change."""

        managed = False
        db_table = table("todoku_delivery")
        ordering: ClassVar = ["-id"]
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"{self.destination} {self.id}"


class _Dead(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(status="aborted")


class DeadLetter(Delivery):
    """A delivery that ended without success, until a person replays or purges it."""

    objects = _Dead()

    class Meta:
        """The same rows, fewer of them."""

        proxy = True
        verbose_name = "dead letter"
