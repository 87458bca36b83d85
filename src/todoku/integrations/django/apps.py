"""The Django application."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules

from todoku.integrations.django.project import get_box, option


class TodokuConfig(AppConfig):
    """Finds jobs, keeps the schema up to date, and follows Django to its test databases."""

    name = "todoku.integrations.django"
    label = "todoku"
    verbose_name = "todoku"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connects signals and imports the jobs of all applications."""
        connection_created.connect(_follow_connection, dispatch_uid="todoku")
        pre_migrate.connect(_before_migrations, sender=self, dispatch_uid="todoku")
        post_migrate.connect(_after_migrations, sender=self, dispatch_uid="todoku")
        if any(str(each.get("BACKEND", "")).startswith(self.name) for each in getattr(settings, "TASKS", {}).values()):
            import_module("todoku.integrations.django.tasks")  # registers its job in every worker
        autodiscover_modules(option("JOBS"))


def _follow_connection(connection: Any, **_rest: Any) -> None:
    if connection.alias == option("DATABASE"):
        get_box().follow()
    elif connection.alias == NO_DB_ALIAS:  # a test database is created or dropped next: it must have no connections
        get_box().leave()


def _before_migrations(using: str, **_rest: Any) -> None:
    if using == option("DATABASE"):
        get_box().follow()


def _after_migrations(using: str, **_rest: Any) -> None:
    """Updates todoku's schema after `migrate`: a newer todoku has a newer schema, but no Django migration for it."""
    if using == option("DATABASE"):
        get_box().migrate()
