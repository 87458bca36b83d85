"""The parts of uvicorn that are not its public interface: `todoku.api` takes them from here and from nowhere else.

Run with the lowest version that `pyproject.toml` allows (`make test-floors`) and with the one in
`requirements/runtime.txt`. Beside the names below, `wire.py` and `straight.py` rely on these of the protocol: `client`,
`cycle`, `expect_100_continue`, `flow`, `headers`, `loop`, `parser`, `pipeline`, `server_state`, `transport`, `url`; and
on these of a cycle: `disconnected`, `keep_alive`, `message_event`, `more_body`, `response_complete`,
`response_started`.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

__all__ = ["STATUS_LINE", "HttpToolsProtocol", "RequestResponseCycle"]
