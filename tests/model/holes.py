"""The holes of the protocol review that this model can express: which fix is taken out, and what breaks then.

A hole with two fixes out is one that two lines of defence close: see `SECOND_LINES` for what each does alone.
`+` marks what the review did not name and the model found: there the design needs a sentence more.

Not here, because they are not about the order of protocol steps. They are conformance, core or engine tests:

* H11 (lock order, lock timeout, splitting a batch), H14 (a statement's snapshot is older than its wait), H20 (index
  bounds), H27 (a missing partition), H28 (a chained audit serialises): SQL, plans and locks of a real server.
* H19 (defaults by the transaction's clock): there is no clock here.
* H23 (a cap on Snooze) is a table test of `core/decide`; H24 (breaker and paused queues) is about fairness and cost.
* H25 (a missed notice) costs time and never a message: polling is the only wake-up here.
* H26 (two SQLite libraries in one process) is outside any protocol: acknowledged commits vanish.
* H29 (identity order is not commit order) and the lanes of I10 are another model: order between messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.scenario import Message, Scenario
from tests.model.search import STRANDED
from tests.model.state import Budget

PLAIN = (Message(),)
KEYED = (Message(key="k"),)
FANNED_OUT = (Message(key="k", destinations=("mail", "shop")),)
POISONED = (Message(poison=True), Message())
SAME_KEY = (Message(key="k"), Message(key="k", scope="another topic"))
OTHER_DIGEST = (Message(key="k"), Message(key="k", scope="another topic", digest="another body"))


@dataclass(frozen=True)
class Hole:
    """One hole: its number and title, the fixes taken out, the invariant that breaks, and the smallest scope."""

    number: str
    title: str
    out: tuple[str, ...]
    breaks: str
    length: int  # steps of the shortest trace
    messages: tuple[Message, ...]
    budget: Budget = Budget()
    renewal_in_flight: bool = False
    hangs: bool = False
    reserves_at_claim: bool = False

    @property
    def scenario(self) -> Scenario:
        """The scope in which the hole shows, and in which the protocol with all its fixes holds."""
        return Scenario(
            f"{self.number} {self.title}",
            self.messages,
            self.budget,
            batch=2 if len(self.messages) > 1 or len(self.messages[0].destinations) > 1 else 1,
            renewal_in_flight=self.renewal_in_flight,
            hangs=self.hangs,
            reserves_at_claim=self.reserves_at_claim,
        )


OWNERSHIP = (
    Hole(
        "H1",
        "an ended lease is renewed",
        ("renew_only_live", "reclaim_buries_first"),
        "i3_one_live_owner",
        12,
        PLAIN,
        Budget(lapses=1),
    ),
    Hole(
        "H1",
        "reclaim races a renewal",
        ("reclaim_buries_first",),
        "i3_one_live_owner",
        12,
        PLAIN,
        Budget(lapses=1),
        renewal_in_flight=True,
    ),
    Hole(
        "H1+",
        "reclaim asks the clock a second time",
        ("free_by_absence",),
        "i3_one_live_owner",
        13,
        PLAIN,
        Budget(lapses=1),
        renewal_in_flight=True,
    ),
    Hole(
        "H2",
        "a claim commits after its worker was buried",
        ("reclaim_is_anti_join", "claim_needs_worker_row"),
        STRANDED,
        7,
        PLAIN,
        Budget(crashes=1),
    ),
    Hole(
        "H2",
        "reclaim joins the worker and skips a locked row",
        ("reclaim_is_anti_join",),
        STRANDED,
        10,
        PLAIN,
        Budget(lapses=1, crashes=1),
    ),
    Hole(
        "H2",
        "a claim without its worker row",
        ("claim_needs_worker_row",),
        "i4_lost_is_explained",
        8,
        PLAIN,
        Budget(drains=1, ambiguous=1),
    ),
    Hole(
        "H3",
        "a claim's reply is lost",
        ("compares_owned_with_held",),
        STRANDED,
        5,
        PLAIN,
        Budget(ambiguous=1),
    ),
    Hole(
        "H3+",
        "the comparison meets a claim in flight",
        ("compare_counts_claim_in_flight",),
        "i3_held_is_owned",
        7,
        PLAIN,
    ),
    Hole(
        "H4",
        "a release is repeated",
        ("release_raises_epoch", "fence_has_worker"),
        "i4_attempts_in_range",
        7,
        PLAIN,
        Budget(ambiguous=1),
    ),
    Hole(
        "H4",
        "a handler settles after its time-out did",
        ("settle_raises_epoch", "fence_has_worker"),
        "i9_terminal_is_final",
        10,
        PLAIN,
        Budget(timeouts=1, failures=1),
    ),
    Hole(
        "H4",
        "an owner settles after a cancel",
        ("cancel_asks_owner", "cancel_raises_epoch", "fence_has_worker"),
        "i9_terminal_is_final",
        7,
        PLAIN,
        Budget(cancels=1),
    ),
    Hole(
        "H4",
        "an owner settles after a reclaim",
        ("reclaim_raises_epoch", "fence_has_worker"),
        "i3_fenced_by_owner",
        8,
        PLAIN,
        Budget(lapses=1),
    ),
    Hole(
        "H4",
        "a replay keeps the epoch",
        ("replay_raises_epoch",),
        "i4_epoch_rises",
        9,
        PLAIN,
        Budget(failures=1, replays=1),
    ),
    Hole(
        "H5",
        "the database forgets a claim",
        ("claims_commit_synchronously",),
        "i3_one_live_owner",
        10,
        PLAIN,
        Budget(failovers=1),
    ),
    Hole(
        "H5",
        "an epoch is handed out again",
        ("claims_commit_synchronously", "fence_has_worker"),
        "i3_fenced_by_owner",
        9,
        PLAIN,
        Budget(failovers=1),
    ),
    Hole(
        "H6",
        "a lost owner costs an attempt",
        ("lost_counted_apart",),
        "i4_attempt_is_fair",
        9,
        POISONED,
    ),
    Hole(
        "H6",
        "a suspect is claimed with its neighbours",
        ("suspects_claimed_alone",),
        "i4_lost_is_explained",
        18,
        POISONED,
    ),
    Hole(
        "H6+",
        "a suspect shares its worker with another claim",
        ("suspect_has_worker_to_itself",),
        "i4_lost_is_explained",
        20,
        POISONED,
        Budget(crashes=1),
    ),
    Hole(
        "H7",
        "prefetched rows are reclaimed from a live worker",
        ("owner_enforces_max_processing",),
        "i3_one_live_owner",
        10,
        PLAIN,
    ),
    Hole(
        "H8",
        "a heartbeat keeps the lease of a dead loop",
        ("hung_worker_stops_renewing",),
        STRANDED,
        5,
        PLAIN,
        Budget(crashes=1),
        hangs=True,
    ),
    Hole(
        "H9",
        "something is started after the lease",
        ("starts_only_in_lease",),
        "i12_starts_in_lease",
        7,
        PLAIN,
        Budget(lapses=1),
    ),
    Hole(
        "H10",
        "a drain leaves its claim in flight",
        ("drain_awaits_claim", "last_act_frees_unknown"),
        "i4_lost_is_explained",
        8,
        PLAIN,
        Budget(drains=1),
    ),
    Hole(
        "H10",
        "a drain frees only what it holds",
        ("last_act_frees_unknown",),
        "i4_lost_is_explained",
        9,
        PLAIN,
        Budget(drains=1, ambiguous=1),
    ),
    Hole(
        "H10+",
        "the last act is one statement",
        ("last_act_looks_after_lock",),
        "i4_lost_is_explained",
        9,
        PLAIN,
        Budget(drains=1, ambiguous=1),
    ),
)

LEDGER = (
    Hole(
        "H12",
        "one ledger entry for a fan-out",
        ("effect_scope_is_destination",),
        "i1_success_is_real",
        10,
        FANNED_OUT,
    ),
    Hole(
        "H13",
        "the ledger is read at claim only",
        ("reserves_effect", "rereads_before_sending"),
        "i5_not_sent_once_recorded",
        15,
        KEYED,
        Budget(lapses=1),
    ),
    Hole(
        "H13",
        "WORKER_LOST without a look at the ledger",
        ("reclaim_reads_ledger",),
        "i5_no_abort_of_a_success",
        15,
        KEYED,
        Budget(lapses=2),
    ),
    Hole(
        "H13+",
        "a failure settled after a zombie's success",
        ("every_abort_reads_ledger",),
        "i5_no_abort_of_a_success",
        17,
        KEYED,
        Budget(lapses=1, failures=1),
    ),
    Hole(
        "H13+",
        "a cancel after a zombie's success",
        ("every_abort_reads_ledger",),
        "i5_no_abort_of_a_success",
        11,
        KEYED,
        Budget(lapses=1, cancels=1),
    ),
    Hole(
        "H13+",
        "two deliveries of one effect run at once",
        ("reserves_effect",),
        "i13_duplicates_are_explained",
        10,
        SAME_KEY,
    ),
    Hole(
        "H13+",
        "a first attempt trusts what its claim saw",
        ("reserves_effect",),
        "i5_not_sent_once_recorded",
        10,
        SAME_KEY,
    ),
    Hole(
        "H13+",
        "two contents under one key are both sent",
        ("reserves_effect",),
        "i5_conflict_was_not_sent",
        11,
        OTHER_DIGEST,
    ),
    Hole(
        "H13",
        "reserved by the claim, not read again",
        ("rereads_before_sending",),
        "i5_not_sent_once_recorded",
        15,
        KEYED,
        Budget(lapses=1),
        reserves_at_claim=True,
    ),
    Hole(
        "H15",
        "a duplicate publish reopens without audit",
        ("reopen_is_audited",),
        "i9_terminal_is_final",
        10,
        KEYED,
        Budget(failures=1, reopens=1),
    ),
    Hole(
        "H15",
        "two publishers reopen at once",
        ("reopen_is_conditional",),
        "i3_held_is_owned",
        15,
        KEYED,
        Budget(failures=1, reopens=2),
    ),
    Hole(
        "H15",
        "a replay leaves its entry failed",
        ("replay_reopens_entry",),
        "i5_failed_entry_is_true",
        9,
        KEYED,
        Budget(failures=1, replays=1),
    ),
    Hole(
        "H16",
        "an entry is pruned under a dead letter",
        ("entry_kept_while_referred",),
        "i5_not_sent_once_recorded",
        16,
        KEYED,
        Budget(lapses=2, replays=1, prunes=1),
    ),
    Hole(
        "H17",
        "prune races a late fan-out",
        ("prune_locks_message",),
        "i1_has_its_message",
        11,
        (Message(late_destinations=("late",)),),
        Budget(prunes=1, fanouts=1),
    ),
    Hole(
        "H18",
        "no route, no row",
        ("no_route_is_aborted",),
        "i1_acknowledged_is_there",
        1,
        (Message(destinations=()),),
    ),
    Hole(
        "H21",
        "a stale transactional handler commits",
        ("tx_rolls_back_when_lost",),
        "i6_one_effect",
        17,
        (Message(transactional=True),),
        Budget(lapses=1),
    ),
    Hole(
        "H22",
        "a running delivery is aborted at once",
        ("cancel_asks_owner",),
        "i3_lost_only_if_stale",
        9,
        PLAIN,
        Budget(cancels=1),
    ),
    Hole(
        "H22+",
        "the cancel flag raises the epoch",
        ("cancel_flag_keeps_epoch",),
        "i3_lost_only_if_stale",
        9,
        PLAIN,
        Budget(cancels=1),
    ),
    Hole(
        "H22+",
        "a cancel dies with the owner it was told to",
        ("cancel_outlives_owner",),
        "cancel_is_heard",
        7,
        PLAIN,
        Budget(cancels=1, lapses=1),
    ),
    Hole(
        "H22+",
        "a replay keeps the cancel flag",
        ("replay_clears_cancel",),
        "cancel_was_asked",
        12,
        PLAIN,
        Budget(cancels=1, replays=1, failures=1),
    ),
    Hole(
        "I5",
        "row and ledger are two transactions",
        ("settle_is_one_transaction",),
        "i5_success_is_recorded",
        8,
        KEYED,
        Budget(crashes=1),
    ),
    Hole(
        "I5",
        "a publish without its entry is repeated",
        ("publish_entry_first",),
        "i5_published_once",
        2,
        KEYED,
        Budget(unanswered=1),
    ),
    Hole(
        "I7",
        "a zombie's success is thrown away",
        ("stale_success_recorded",),
        "i7_success_stays_true",
        10,
        KEYED,
        Budget(lapses=1),
    ),
    Hole(
        "I7+",
        "a zombie's failure is believed",
        ("stale_failure_leaves_ledger",),
        "i5_failed_entry_is_true",
        10,
        KEYED,
        Budget(lapses=1, failures=1),
    ),
)

HOLES = OWNERSHIP + LEDGER
