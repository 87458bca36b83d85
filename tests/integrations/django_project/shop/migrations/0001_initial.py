"""The project's own table."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """As makemigrations writes it."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="User",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(unique=True)),
                ("welcomed", models.IntegerField(default=0)),
            ],
        )
    ]
