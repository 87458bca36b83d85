"""Credentials that everybody knows are for this machine alone."""

from __future__ import annotations

import socket

from todoku.core.development_credentials import is_public
from todoku.core.errors import CannotStart
from todoku.core.settings import Settings
from todoku.daemon.http_thread import is_local


def refuse_public_credentials(settings: Settings, listening: socket.socket) -> None:
    """CannotStart if the token or a signing key is a public one, and others can reach the server."""
    if is_public(settings.token, settings.signing_keys) and not is_local(listening):
        listening.close()
        raise CannotStart(
            "the credentials of development are known to everybody, and others could reach this server",
            hint="listen on 127.0.0.1, or set TODOKU_TOKEN and TODOKU_SIGNING_KEYS of your own",
        )
