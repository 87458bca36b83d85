"""Everything a process of the example holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import todoku
from orders_example.accepting import Accepting
from orders_example.broker import BrokerAdapter
from orders_example.broker.http import HttpAdapter
from orders_example.broker.paper import PaperAdapter
from orders_example.broker.scenario import read_scenario
from orders_example.database import Database
from orders_example.sending import Sending
from orders_example.settings import Settings


class Application:
    """The App with its consumer, the accepting side, and the adapter to the broker. Make it with `opened`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.box = todoku.App(settings.database)
        self.database = Database(settings.database)
        self.adapter = _adapter(settings)
        self.accepting = Accepting(self.box, self.database)
        self.sending = Sending(self.box, self.database, self.adapter, settings.broker_timeout)

    def prepare(self) -> None:
        """Make what is missing in the database: todoku's tables, and the seed's as views."""
        self.box.migrate()
        self.database.prepare()

    def close(self) -> None:
        """Give back every connection."""
        self.database.close()
        self.box.close()


@contextmanager
def opened(settings: Settings) -> Iterator[Application]:
    """An Application on a database that has everything; closed at the end."""
    application = Application(settings)
    try:
        application.prepare()
        yield application
    finally:
        application.close()


def _adapter(settings: Settings) -> BrokerAdapter:
    if settings.broker_url is not None:
        return HttpAdapter(settings.broker_url, todoku.Ref(settings.broker_token))
    return PaperAdapter(read_scenario(settings.scenario))
