"""The holes of the protocol review that this model can express: which fix is taken out, and what breaks then.

A hole with two fixes out is one that two lines of defence close: test_protocol.py says what each does alone.
`+` marks what the review did not name and the model found: there the design needs a sentence more.

Not here, because they are not about the order of protocol steps. They are conformance, core or engine tests:

* H11 (lock order, lock timeout, splitting a batch), H14 (a statement's snapshot is older than its wait), H20 (index
  bounds), H27 (a missing partition), H28 (a chained audit serialises): SQL, plans and locks of a real server.
* H19 (defaults by the transaction's clock): there is no clock here.
* H23 (a cap on Snooze) is a table test of `core/decision`; H24 (breaker and paused queues) is about fairness and cost.
* H25 (a missed notice) costs time and never a message: polling is the only wake-up here. wakeup.py is its own model.
* H26 (two SQLite libraries in one process) is outside any protocol: acknowledged commits vanish.
* H29 (identity order is not commit order) and the lanes of I10 are another model: order between messages.
"""

from __future__ import annotations

from tests.model.holes_ledger import LEDGER
from tests.model.holes_ownership import OWNERSHIP

HOLES = OWNERSHIP + LEDGER
