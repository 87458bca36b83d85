"""GitHub: `X-Hub-Signature-256: sha256=…` signs the body. The id and the type are headers that are not signed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from todoku.core.ingest import Arrived, Identity, Secret, checked_id
from todoku.sources.signing import checked, hexed, matching, shown


class GitHub(msgspec.Struct, frozen=True):
    """The `Verifier` of GitHub."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ("x-github-event", "x-github-hook-id", "x-github-hook-installation-target-id")

    def __repr__(self) -> str:
        return shown("github", self.secrets)

    def key(self, secret: str) -> bytes:
        """See `Verifier`."""
        return secret.encode()

    def signed_by(self, arrived: Arrived, keys: Sequence[bytes], _now: float) -> int | None:
        """See `Verifier`. GitHub signs no timestamp."""
        expected = [f"sha256={hexed(key, arrived.body)}" for key in keys]
        return matching(expected, [arrived.headers.get("x-hub-signature-256", "")])

    def identity(self, arrived: Arrived, _event: object) -> Identity:
        """See `Verifier`. A redelivery has the id of the first delivery."""
        id = checked_id(arrived.headers.get("x-github-delivery"), "the header X-GitHub-Delivery")
        return Identity(id, arrived.headers.get("x-github-event"))


def github(*, secrets: Iterable[Secret]) -> GitHub:
    """Verifies webhooks of GitHub, sent as `application/json` with a secret. `{type}` is the event's name: `push`."""
    return GitHub(checked(secrets))
