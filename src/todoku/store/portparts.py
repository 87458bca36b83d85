"""The parts of the port that are about one table or a few: each a class of its own, whose docstrings are contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from todoku.store.alerting import AlertRows
    from todoku.store.apikeys import ApiKeys
    from todoku.store.datakeys import DataKeys
    from todoku.store.events import RequestEvents
    from todoku.store.http import Http
    from todoku.store.records import Records
    from todoku.store.requests import RequestRows
    from todoku.store.schedules import Timetable
    from todoku.store.secrets import Secrets


class PortParts(Protocol):
    """What a store has beside the line."""

    @property
    def timetable(self) -> Timetable:
        """The schedules."""

    @property
    def alerts(self) -> AlertRows:
        """Who is told that something is wrong."""

    @property
    def data_keys(self) -> DataKeys:
        """The wrapped keys of what is encrypted."""

    @property
    def secrets(self) -> Secrets:
        """Secrets that todoku keeps itself."""

    @property
    def api_keys(self) -> ApiKeys:
        """The tokens of the HTTP API, hashed."""

    @property
    def http(self) -> Http:
        """Queues, flow keys and URL groups."""

    @property
    def requests(self) -> RequestRows:
        """Requests as people look for them."""

    @property
    def events(self) -> RequestEvents:
        """What happened to requests."""

    @property
    def records(self) -> Records:
        """What was recorded, as people read it back."""
