"""todoku's tables as read-only Django models. Only todoku creates and changes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.db import models

from todoku.integrations.django.project import option
from todoku.store.columns import EPOCH


def table(name: str) -> str:
    """The name of one of todoku's tables, with its schema: Django has no option for that."""
    schema = option("SCHEMA")
    return name if schema is None else f'"{schema}"."{name}"'


class Moment(models.Field):
    """A time: `timestamptz` on PostgreSQL, microseconds since 1970 on SQLite."""

    def get_internal_type(self) -> str:
        """Not DateTimeField: as such, Django would read SQLite's numbers as texts."""
        return "BigIntegerField"

    def from_db_value(self, value: Any, *_rest: Any) -> datetime | None:
        """Converts a stored value to a time."""
        return EPOCH + timedelta(microseconds=value) if isinstance(value, int) else value

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: ARG002
        """Converts a time to compare with."""
        if isinstance(value, datetime) and connection.vendor == "sqlite":
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return (aware - EPOCH) // timedelta(microseconds=1)
        return value


class Message(models.Model):
    """A message, without its payload, which the admin shows masked."""

    seq = models.BigIntegerField(primary_key=True)
    id = models.UUIDField(unique=True)
    topic = models.TextField()
    key = models.TextField(null=True)
    created_at = Moment()

    class Meta:
        """Not managed by Django."""

        managed = False
        db_table = table("todoku_message")

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class Delivery(models.Model):
    """A delivery that has not succeeded: unfinished, or a dead letter."""

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
        """Not managed by Django."""

        managed = False
        db_table = table("todoku_delivery")
        ordering: ClassVar = ["-id"]
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"{self.destination} {self.id}"


class _DeadLetterManager(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(status="aborted")


class DeadLetter(Delivery):
    """A delivery that was aborted, until an operator replays or purges it."""

    objects = _DeadLetterManager()

    class Meta:
        """A subset of the same rows."""

        proxy = True
        verbose_name = "dead letter"
