"""`manage.py todoku …`: the program `todoku`, on this project's App and database."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from todoku.integrations.django.project import get_box
from todoku.integrations.program import run_program


class Command(BaseCommand):
    """Hands everything on: `manage.py todoku run`, `manage.py todoku list`, `manage.py todoku replay --help`."""

    help = "The program `todoku` on this project: run, list, show, replay, … ; `manage.py todoku --help` lists them."
    requires_system_checks: list[str] = []  # noqa: RUF012 - as Django declares it

    def run_from_argv(self, argv: list[str]) -> None:
        """As it was typed: the options are the program's, not Django's."""
        run_program(get_box(), argv[2:], app="todoku.integrations.django:box")

    def add_arguments(self, parser: Any) -> None:
        """What `call_command("todoku", "list", "--json")` may say."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_args: Any, arguments: list[str], **_options: Any) -> None:
        """For `call_command`."""
        run_program(get_box(), arguments, app="todoku.integrations.django:box")
