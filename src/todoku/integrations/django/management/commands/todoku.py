"""`manage.py todoku …`: runs the program `todoku` on this project's App and database."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from todoku.integrations.django.project import get_box
from todoku.integrations.program import run_program


class Command(BaseCommand):
    """Passes all arguments on: `manage.py todoku run`, `manage.py todoku list`, `manage.py todoku replay --help`."""

    help = "Run a todoku command on this project: run, list, show, replay, …; see `manage.py todoku --help`."
    requires_system_checks: list[str] = []  # noqa: RUF012 - as Django declares it

    def run_from_argv(self, argv: list[str]) -> None:
        """Passes the arguments on as typed: the options are those of todoku, not of Django."""
        run_program(get_box(), argv[2:], app="todoku.integrations.django:box")

    def add_arguments(self, parser: Any) -> None:
        """Accepts any arguments, for `call_command("todoku", "list", "--json")`."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_args: Any, arguments: list[str], **_options: Any) -> None:
        """Runs the program for `call_command`."""
        run_program(get_box(), arguments, app="todoku.integrations.django:box")
