"""The App by itself, for todoku's own commands: `todoku run --app shop_example.box:box` is the publisher."""

from __future__ import annotations

import os

from shop_example.broker import open_broker
from shop_example.orders import Shop
from shop_example.settings import read_settings, wait_as_the_seed_does

wait_as_the_seed_does(os.environ)
_settings = read_settings(os.environ)
box = Shop(_settings.database, open_broker(_settings.broker, _settings.address).destination()).box
