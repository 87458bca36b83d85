"""The parts of uvicorn that are not its public interface: `todoku.api` takes them from here and from nowhere else.

Run with the lowest version that `pyproject.toml` allows (`make test-floors`) and with the one in
`requirements/runtime.txt`. Beside the names below, `wire.py` and `straight.py` rely on these of the protocol: `client`,
`cycle`, `expect_100_continue`, `flow`, `headers`, `loop`, `parser`, `pipeline`, `server_state`, `transport`, `url`; and
on these of a cycle: `disconnected`, `keep_alive`, `message_event`, `more_body`, `response_complete`,
`response_started`.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

__all__ = ["STATUS_LINE", "RequestResponseCycle", "UvicornProtocol"]


class UvicornProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a name of our own for what it keeps private."""

    def cancel_idle_deadline(self) -> None:
        """The connection is idle no longer: uvicorn does not close it for having waited between two requests."""
        self._unset_keepalive_if_required()

    def set_keep_alive(self, keep: bool) -> None:
        """Say whether the connection goes on after the answer to the newest request; the answer says the same.

        uvicorn before 0.53 ends the connection without saying so, and the client may have sent another request by then.
        """
        headers = self.server_state.default_headers
        self.cycle.keep_alive = keep
        self.cycle.default_headers = headers if keep else [*headers, (b"connection", b"close")]
