"""What Django is told about todoku."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules

from todoku.integrations.django.project import option, the_box


class TodokuConfig(AppConfig):
    """The application: finds jobs, keeps the schema up to date, and follows Django into its test databases."""

    name = "todoku.integrations.django"
    label = "todoku"
    verbose_name = "todoku"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Everything is loaded: find the jobs of all applications."""
        connection_created.connect(_followed, dispatch_uid="todoku")
        pre_migrate.connect(_before_migrations, sender=self, dispatch_uid="todoku")
        post_migrate.connect(_after_migrations, sender=self, dispatch_uid="todoku")
        if any(str(each.get("BACKEND", "")).startswith(self.name) for each in getattr(settings, "TASKS", {}).values()):
            import_module("todoku.integrations.django.tasks")  # its job must be known to every worker
        autodiscover_modules(option("JOBS"))


def _followed(connection: Any, **_rest: Any) -> None:
    if connection.alias == option("DATABASE"):
        the_box().follow()
    elif connection.alias == NO_DB_ALIAS:  # a test database is about to be made or dropped: nobody may be in it
        the_box().leave()


def _before_migrations(using: str, **_rest: Any) -> None:
    if using == option("DATABASE"):
        the_box().follow()


def _after_migrations(using: str, **_rest: Any) -> None:
    """A newer todoku brings a newer schema, but no migration of Django's: whoever migrates brings it up to date."""
    if using == option("DATABASE"):
        the_box().migrate()
