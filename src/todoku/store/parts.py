"""Parts of the store that are about one table or a few, each a class of its own over the same database."""

from __future__ import annotations

from todoku.store.alerting import AlertRows
from todoku.store.apikeys import ApiKeys
from todoku.store.database import Database
from todoku.store.datakeys import DataKeys
from todoku.store.events import RequestEvents
from todoku.store.http import Http
from todoku.store.records import Records
from todoku.store.requests import RequestRows
from todoku.store.schedules import Timetable
from todoku.store.secrets import Secrets


class Parts:
    """What each is, is said in `port.py`."""

    database: Database

    @property
    def timetable(self) -> Timetable:
        return Timetable(self.database)

    @property
    def alerts(self) -> AlertRows:
        return AlertRows(self.database)

    @property
    def data_keys(self) -> DataKeys:
        return DataKeys(self.database)

    @property
    def secrets(self) -> Secrets:
        return Secrets(self.database)

    @property
    def api_keys(self) -> ApiKeys:
        return ApiKeys(self.database)

    @property
    def http(self) -> Http:
        return Http(self.database)

    @property
    def requests(self) -> RequestRows:
        return RequestRows(self.database)

    @property
    def events(self) -> RequestEvents:
        return RequestEvents(self.database)

    @property
    def records(self) -> Records:
        return Records(self.database)
