"""What a daemon needs to serve HTTP and nobody gave it: made once, said once."""

from __future__ import annotations

from todoku.core.errors import TodokuError
from todoku.core.settings import Settings
from todoku.engine.http.api_tokens import first
from todoku.engine.http.signing_keys import signing_keys
from todoku.engine.observability.log import Log
from todoku.store.port import Store


def made_credentials(store: Store, settings: Settings, address: str) -> list[str]:
    """Lines that say what was made now: the first token, the signing keys. Nothing, if they were there.

    What cannot be made is logged; everything that needs none works without.
    """
    try:
        token, keys = first(store, settings), signing_keys(store, settings)
    except TodokuError as error:
        Log(part="http").error("NO_CREDENTIALS", error=str(error))
        return []
    lines = [] if token is None else [f"  QSTASH_URL={address}", f"  QSTASH_TOKEN={token}"]
    if keys.made:
        lines += [f"  QSTASH_CURRENT_SIGNING_KEY={keys.current}", f"  QSTASH_NEXT_SIGNING_KEY={keys.next}"]
    return ["todoku made these, and says them only now:", *lines] if lines else []
