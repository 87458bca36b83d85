"""The texts of workflow runs, as they may be stored: sealed by the master key, since a run may outlive data keys."""

from __future__ import annotations

import base64

import msgspec

from todoku.core.http_request import TOPIC, HttpRequest
from todoku.core.redaction import strip_secret_headers
from todoku.core.sealed import VERSION, MasterKeys, master_sealed_text, parse_master_sealed
from todoku.engine.encryption.cipher import open_with_master_key, seal_with_master_key
from todoku.engine.encryption.sealer import Sealer

_REQUEST = "request"


class RunTexts:
    """Seals and opens the texts of runs: bodies if HTTP requests are encrypted, options if they have secret headers."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def close_body(self, run_id: str, key: str, body: bytes) -> str:
        """Returns the body of a step as it is stored: sealed, or base64."""
        if self._sealer.is_encrypted(TOPIC):
            return _seal(run_id, key, body, self._sealer.masters)
        return base64.b64encode(body).decode()

    def open_body(self, run_id: str, key: str, text: str) -> str:
        """Returns the body of a step as base64. CannotOpen."""
        if (opened := _open(run_id, key, text, self._sealer.masters)) is None:
            return text
        return base64.b64encode(opened).decode()

    def close_request(self, run_id: str, request: HttpRequest) -> str:
        """Returns the options of a run as they are stored."""
        plain = msgspec.json.encode(request)
        masters = self._sealer.masters
        if masters and (self._sealer.is_encrypted(TOPIC) or strip_secret_headers(request) != request):
            return _seal(run_id, _REQUEST, plain, masters)
        return plain.decode()

    def open_request(self, run_id: str, text: str) -> HttpRequest:
        """Returns the options of a run. CannotOpen."""
        opened = _open(run_id, _REQUEST, text, self._sealer.masters)
        return msgspec.json.decode(text if opened is None else opened, type=HttpRequest)


def _seal(run_id: str, key: str, plain: bytes, masters: MasterKeys) -> str:
    return master_sealed_text(seal_with_master_key(plain, _place(run_id, key), masters))


def _open(run_id: str, key: str, text: str, masters: MasterKeys) -> bytes | None:
    """None: the text is not sealed."""
    if (kept := parse_master_sealed(text)) is None:
        return None
    return open_with_master_key(kept, _place(run_id, key), masters, called=f"the workflow run {run_id}")


def _place(run_id: str, key: str) -> str:
    return f"run {VERSION}\0{run_id}\0{key}"
