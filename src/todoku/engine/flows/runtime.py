"""What all runs of one workflow share: the store, the codecs of its steps, encryption, and what it may publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from todoku.core.message import Claimed
from todoku.core.outcome import Retry, error_text
from todoku.core.sealed import kind_of
from todoku.engine.encryption.opener import Opener
from todoku.engine.flows.step_function import StepFunctions
from todoku.engine.flows.step_writer import StepWriter
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.jobs.decoders import result_decoder
from todoku.engine.jobs.hints import Hints
from todoku.engine.jobs.job import Call, Job
from todoku.engine.outbox import Outbox
from todoku.store.store import Store

OnChange = Literal["stop", "run"]
"""What a run does whose code calls a step with other arguments than those that are stored (R1)."""

ON_CHANGES: Final[tuple[OnChange, ...]] = ("stop", "run")


class Sleeps:
    """Whether the runs of an App wait for their sleeps. Only `todoku.testing` skips them."""

    skipped = False


class FlowRuntime:
    """The surroundings of the runs of one workflow."""

    def __init__(
        self, declarations: Declarations, functions: StepFunctions, writer: StepWriter, on_change: OnChange,
        sleeps: Sleeps,
    ) -> None:  # fmt: skip
        self.declarations = declarations
        self._outbox = declarations.outbox
        self.functions = functions
        self.writer = writer
        self.on_change = on_change
        self.workflow: Job[..., Any] | None = None
        self.sleeps = sleeps
        self._results: dict[Callable[..., Any], Callable[[str], Any]] = {}

    @property
    def store(self) -> Store:
        """The store of the App, which may change to another database."""
        return self._outbox.store

    @property
    def outbox(self) -> Outbox:
        """The outbox that builds drafts."""
        return self._outbox

    @property
    def opener(self) -> Opener:
        """Decrypts what the steps of encrypted runs keep."""
        return self._outbox.opener

    def seal_text(self, claim: Claimed, text: str) -> str:
        """Returns a text as it is stored with a step: that of an encrypted run is sealed (R13)."""
        return self.opener.seal_step(claim, text)

    def keep_signal(self, claim: Claimed, name: str, text: str) -> str:
        """Returns the value of a signal as it is stored with the step that waited for it."""
        return self.opener.keep_signal(claim, name, text)

    def open_text(self, claim: Claimed, text: str) -> str:
        """Returns a stored text of a step, decrypted if it is sealed."""
        return self.opener.step(text, claim.message_id, claim.destination)

    def error_of(self, claim: Claimed, error: Exception) -> str:
        """Returns the text of a step's error as it is stored: of an encrypted run only its type, as of any message."""
        name = type(error).__name__
        if kind_of(claim.content_type) is not None:
            return name
        told = f"{error.reason}: {error.detail}" if isinstance(error, Retry) else f"{name}: {error}"
        return error_text(told)

    def next_run(self, claim: Claimed) -> Job[..., Any]:
        """Returns the workflow of this run with the options of the run that follows it: its key, priority and queue.

        Its own idempotency key: with `unique_for` the same arguments would be a duplicate of this run.
        """
        assert self.workflow is not None  # noqa: S101 - set where it is declared
        return self.workflow.using(
            key=claim.key, priority=claim.priority, queue=claim.queue, idempotency_key=f"after {claim.message_id}"
        )

    def result_decoder(self, call: Call[Any]) -> Callable[[str], Any]:
        """Returns the decoder of a child's result, as the type that its job says it returns."""
        function = call.handler.function
        if (decode := self._results.get(function)) is None:
            hints = Hints(function, call.job)
            decode = self._results[function] = result_decoder(hints.returns, call.job)
        return decode

    def secret_of(self, claim: Claimed) -> bytes:
        """Returns the key of the digests in the step keys of an encrypted run; empty for any other (R13)."""
        return b"" if kind_of(claim.content_type) is None else self.opener.step_secret(claim)
