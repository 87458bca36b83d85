"""The private names of uvicorn: `todoku.api` imports them only from here.

`TESTED` was run at both ends: the lowest version that `pyproject.toml` allows (`make test-floors`) and the one in
`requirements/runtime.txt`. With another version, or one without these names, the server uses uvicorn's public interface
(`ingest_fast_path.protocol_options`). Besides the names below, `http_limits.py` and `ingest_fast_path.py` rely on these
of the protocol: `client`, `cycle`, `expect_100_continue`, `flow`, `headers`, `loop`, `parser`, `pipeline`,
`server_state`, `transport`, `url`; and on these of a cycle: `disconnected`, `keep_alive`, `message_event`, `more_body`,
`response_complete`, `response_started`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import uvicorn

from todoku.core.version_range import VersionRange

try:
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
except ImportError:
    if not TYPE_CHECKING:
        STATUS_LINE, HttpToolsProtocol, RequestResponseCycle = {}, object, object  # `is_tested` is false then

__all__ = ["STATUS_LINE", "RequestResponseCycle", "UvicornProtocol", "is_tested"]

TESTED: Final = VersionRange((0, 36), (0, 55))

_OVERRIDDEN: Final = (
    "_unset_keepalive_if_required", "connection_lost", "connection_made", "data_received", "on_body", "on_header",
    "on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete", "pause_writing",
    "resume_writing",
)  # fmt: skip
"""Methods of uvicorn's protocol that are called or replaced here."""


def is_tested() -> bool:
    """Returns whether the private names of the installed uvicorn can be relied on."""
    return TESTED.includes(uvicorn.__version__) and all(hasattr(HttpToolsProtocol, name) for name in _OVERRIDDEN)


class UvicornProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with public names for its private methods."""

    def cancel_idle_deadline(self) -> None:
        """Stops uvicorn's timer that closes an idle connection."""
        self._unset_keepalive_if_required()

    def set_keep_alive(self, keep: bool) -> None:
        """Sets whether the connection stays open after the response to the newest request, which declares the same.

        uvicorn before 0.53 ends the connection without saying so, and the client may have sent another request by then.
        """
        headers = self.server_state.default_headers
        self.cycle.keep_alive = keep
        self.cycle.default_headers = headers if keep else [*headers, (b"connection", b"close")]
