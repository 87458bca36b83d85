"""GitHub: `X-Hub-Signature-256: sha256=…` signs the body. The id and the type are headers that are not signed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from todoku.core.ingest import Identity, ReceivedRequest, Secret, check_event_id
from todoku.sources.signing import check_secrets, find_match, hex_mac, verifier_repr


class GitHub(msgspec.Struct, frozen=True):
    """The `Verifier` of GitHub."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ("x-github-event", "x-github-hook-id", "x-github-hook-installation-target-id")

    def __repr__(self) -> str:
        return verifier_repr("github", self.secrets)

    def key(self, secret: str) -> bytes:
        """See `Verifier`."""
        return secret.encode()

    def signed_by(self, arrived: ReceivedRequest, keys: Sequence[bytes], _now: float) -> int | None:
        """See `Verifier`. GitHub signs no timestamp."""
        expected = [f"sha256={hex_mac(key, arrived.body)}" for key in keys]
        return find_match(expected, [arrived.headers.get("x-hub-signature-256", "")])

    def identity(self, arrived: ReceivedRequest, _event: object) -> Identity:
        """See `Verifier`. A redelivery has the id of the first delivery."""
        id = check_event_id(arrived.headers.get("x-github-delivery"), "the header X-GitHub-Delivery")
        return Identity(id, arrived.headers.get("x-github-event"))


def github(*, secrets: Iterable[Secret]) -> GitHub:
    """Verifies webhooks of GitHub, sent as `application/json` with a secret. `{type}` is the event's name: `push`."""
    return GitHub(check_secrets(secrets))
