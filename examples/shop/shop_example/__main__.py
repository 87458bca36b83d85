"""`python -m shop_example [command]`: the parts of the shop, or without a command all of them until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import uvicorn
from sqlalchemy.exc import DBAPIError

import todoku
from shop_example.api import make_api
from shop_example.broker import Broker, keep_receiving, open_broker
from shop_example.everything import Stopped, run_everything
from shop_example.orders import Shop
from shop_example.own_broker import own_broker, port_of
from shop_example.points import Points
from shop_example.settings import Settings, read_settings, wait_as_the_seed_does

IDLE = 0.5
"""How long `points --once` waits for another message."""


def broker(settings: Settings, _given: argparse.Namespace) -> int:
    """A NATS server on the port of BROKER_URL, until it is stopped."""
    stopped = Stopped()
    with own_broker(Path("nats"), port_of(settings.broker)) as url:
        print(url, flush=True)
        while stopped.by is None:
            time.sleep(0.1)
    return 0


def prepare(settings: Settings, _given: argparse.Namespace) -> int:
    """Tables, view, stream or queue: whatever is missing."""
    shop, points = _shop(settings), Points(settings.points_database)
    shop.prepare()
    points.prepare()
    asyncio.run(open_broker(settings.broker, settings.address).declare())
    return 0


def order(settings: Settings, given: argparse.Namespace) -> int:
    """The seed's createOrder(userId, amount)."""
    print(f'{{"orderId": "{_shop(settings).create_order(given.user, given.amount)}"}}')
    return 0


def serve(settings: Settings, _given: argparse.Namespace) -> int:
    """The API."""
    logging.getLogger("todoku").setLevel(logging.WARNING)
    uvicorn.run(make_api(_shop(settings)), host=os.environ.get("HOST", "127.0.0.1"), port=settings.port,
                log_level="warning", access_log=False)  # fmt: skip
    return 0


def points(settings: Settings, given: argparse.Namespace) -> int:
    """The consumer: until it is stopped, or with --once until nothing is left."""
    consumer = Points(settings.points_database)
    source = open_broker(settings.broker, settings.address)
    asyncio.run(source.receive(consumer.take, idle=IDLE) if given.once else _until_stopped(source, consumer))
    return 0


async def _until_stopped(source: Broker, consumer: Points) -> None:
    loop = asyncio.get_running_loop()
    receiving = loop.create_task(keep_receiving(source, consumer.take))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(receiving.cancel))
    # The worker beside it has nothing to send: it takes old marks out of the inbox.
    async with consumer.box.lifespan():
        await asyncio.wait([receiving])


def balance(settings: Settings, _given: argparse.Namespace) -> int:
    """Who has how many points."""
    for user, number in Points(settings.points_database).balance().items():
        print(f"{user} {number}")
    return 0


def everything(_settings: Settings, given: argparse.Namespace) -> int:
    """All parts of the shop, until Ctrl-C; or one of them."""
    return run_everything(lambda settings: prepare(settings, given))


def _amount(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount: a whole number above 0")
    return int(text)


def _shop(settings: Settings) -> Shop:
    return Shop(settings.database, open_broker(settings.broker, settings.address).destination())


COMMANDS = {each.__name__: each for each in (broker, prepare, order, serve, points, balance)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done or stopped, 1 it failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m shop_example", description=everything.__doc__)
    commands = parser.add_subparsers(dest="command")
    made = {name: commands.add_parser(name, help=act.__doc__) for name, act in COMMANDS.items()}
    made["order"].add_argument("user", type=UUID)
    made["order"].add_argument("amount", type=_amount)
    made["points"].add_argument("--once", action="store_true")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    logging.getLogger("todoku").setLevel(logging.WARNING)
    wait_as_the_seed_does(os.environ)
    try:
        return COMMANDS.get(given.command, everything)(read_settings(os.environ), given)
    except (todoku.TodokuError, DBAPIError, OSError) as error:
        sys.stderr.write(f"shop: {error}\n")
        return 2 if isinstance(error, todoku.InvalidSetting) else 1


if __name__ == "__main__":
    sys.exit(main())
