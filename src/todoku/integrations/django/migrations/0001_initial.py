"""Creates todoku's schema by todoku's own migrations, and declares the tables that the admin shows."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from todoku.integrations.django.models import Moment, table
from todoku.integrations.django.project import get_box


def migrate(_apps: Any, editor: Any) -> None:
    """Creates todoku's tables, on a connection of todoku."""
    box = get_box()
    if editor.connection.alias == box.alias:
        box.follow()
        box.migrate()


class Migration(migrations.Migration):
    """Not in Django's transaction: todoku uses its own, and SQLite has only one writer at a time."""

    initial = True
    atomic = False
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar = [
        migrations.RunPython(migrate, migrations.RunPython.noop),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("seq", models.BigIntegerField(primary_key=True, serialize=False)),
                ("id", models.UUIDField(unique=True)),
                ("topic", models.TextField()),
                ("key", models.TextField(null=True)),
                ("created_at", Moment()),
            ],
            options={"managed": False, "db_table": table("todoku_message")},
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("destination", models.TextField()),
                ("queue", models.TextField()),
                ("priority", models.SmallIntegerField()),
                ("status", models.TextField()),
                ("attempts", models.IntegerField()),
                ("max_attempts", models.IntegerField()),
                ("lost", models.IntegerField()),
                ("replay_count", models.IntegerField()),
                ("next_run_at", Moment()),
                ("updated_at", Moment()),
                ("reason", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
                ("message", models.ForeignKey(
                    "todoku.Message", models.DO_NOTHING, db_column="message_seq", db_constraint=False
                )),
            ],
            options={
                "managed": False, "db_table": table("todoku_delivery"), "ordering": ["-id"],
                "verbose_name_plural": "deliveries",
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            options={"proxy": True, "verbose_name": "dead letter", "indexes": [], "constraints": []},
            bases=("todoku.delivery",),
        ),
    ]  # fmt: skip
