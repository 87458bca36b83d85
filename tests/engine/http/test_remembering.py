"""What is looked up on every request is remembered for a few seconds: keys, tokens."""

from __future__ import annotations

from tests.support.world import SOMEBODY, World
from todoku.engine.http import api_tokens, signing_keys


def test_a_worker_signs_with_the_new_key_after_a_few_seconds(world: World) -> None:
    now = [0.0]
    ring = signing_keys.KeyRing(world.store, world.settings(), monotonic=lambda: now[0])
    before = ring.keys()
    after = signing_keys.rotate(world.store, world.settings(), SOMEBODY)
    assert ring.keys() is before
    now[0] += signing_keys.CACHE_SECONDS
    assert ring.keys() == after
    assert ring.keys().current == before.next


def test_a_token_that_is_remembered_needs_no_query_until_its_use_is_to_be_noted(world: World) -> None:
    """An event loop uses `recall` without a thread: it must not block."""
    now = [0.0]
    checking = api_tokens.TokenChecker(world.store, world.settings(token="0123456789abcdef"), monotonic=lambda: now[0])
    _, text = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["read"])
    assert checking.recall("0123456789abcdef")[0]
    assert not checking.recall(text)[0]
    checking.check(text)
    assert checking.recall(text)[0]
    now[0] += api_tokens.USED_EVERY - 1
    checking.check(text)
    assert checking.recall(text)[0]
    now[0] += 2
    assert not checking.recall(text)[0]


def test_what_is_nobodys_is_remembered_too(world: World) -> None:
    """Guessing must not cost the database a query each time."""
    checking = api_tokens.TokenChecker(world.store, world.settings())
    assert checking.check("nobody") is None
    assert checking.recall("nobody")[0]
