"""The summary of a database that `todoku up` prints."""

from __future__ import annotations

import re

import msgspec

from todoku.core.settings import Settings
from todoku.core.status import Status
from todoku.store.statistics import Counts


class About(msgspec.Struct, frozen=True):
    """Where the database is, and how many deliveries it has."""

    database: str
    dialect: str
    detail: str
    counts: Counts

    def as_dict(self) -> dict[str, object]:
        """Returns the summary as one JSON object."""
        where: dict[str, object] = {"database": self.database, "dialect": self.dialect, "detail": self.detail}
        return where | dict(self._numbers())

    def as_lines(self) -> list[str]:
        """Returns the summary as lines of text."""
        numbers = ", ".join(f"{number} {status}" for status, number in self._numbers().items())
        return [
            f"todoku is ready on {self.database}",
            f"  {self.detail}",
            f"  deliveries: {numbers}" + ("" if self.counts.exact else " (sampled)"),
        ]

    def _numbers(self) -> dict[str, int]:
        return {status.value: self.counts.of(status.value) for status in Status}


def migrate_command(settings: Settings) -> str:
    """The command that creates or updates the tables of this very database, whatever the environment names."""
    schema = "" if settings.schema is None else f" --schema {settings.schema}"
    return f"todoku migrate --db {without_password(settings.database)}{schema}"


def without_password(url: str) -> str:
    """Returns a database URL with its passwords replaced by stars."""
    url = re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)
    return re.sub(r"([?&]\w*password=)[^&]*", r"\1***", url)
