"""The fixes of the protocol, each a switch: taking one out must bring its hole back.

The name says what the protocol does when the switch is on. `H…` is the hole of the protocol review that the fix
closes; `+` marks a fix that the design did not spell out and that this model asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Fixes:
    """All on by default: that is the protocol."""

    # Lease
    renew_only_live: bool = True  # H1: a lease that ended is never renewed
    reclaim_buries_first: bool = True  # H1: delete the worker row (its lock decides against a renewal), then free
    free_by_absence: bool = True  # H1+: "no live owner" means no worker row; the clock is not asked a second time
    hung_worker_stops_renewing: bool = True  # H8: the heartbeat thread watches the loop
    starts_only_in_lease: bool = True  # H9: nothing is started after the lease can have ended

    # Claim
    claim_needs_worker_row: bool = True  # H2: FOR KEY SHARE on the own worker row, nothing without it
    claims_commit_synchronously: bool = True  # H5: a claim that was answered is never forgotten
    suspects_claimed_alone: bool = True  # H6: a row with lost > 0 is no part of a batch
    suspect_has_worker_to_itself: bool = True  # H6+: and its worker holds nothing else while it has it
    replay_keeps_suspicion: bool = True  # H6+: a replayed killer of workers is still claimed alone
    compares_owned_with_held: bool = True  # H3: what the database says I own and I do not hold is released
    compare_counts_claim_in_flight: bool = True  # H3+: the comparison and a claim of one worker exclude each other
    drain_awaits_claim: bool = True  # H10
    drain_counts_what_started: bool = True  # H10+: only what had not started gets its attempt back
    last_act_frees_unknown: bool = True  # H10: the last act frees by owner, not by what is held
    last_act_looks_after_lock: bool = True  # H10+: two statements; one alone frees by a snapshot older than its lock

    # Fence
    settle_raises_epoch: bool = True  # H4
    release_raises_epoch: bool = True  # H4
    cancel_raises_epoch: bool = True  # H4
    reclaim_raises_epoch: bool = True  # H4
    replay_raises_epoch: bool = True  # H4
    fence_has_worker: bool = True  # H5: (id, epoch, owner), the owner random per incarnation

    # Reclaim
    reclaim_is_anti_join: bool = True  # H2: frees what has no worker row, not what joins an ended one
    lost_counted_apart: bool = True  # H6: attempts - 1, lost + 1
    owner_enforces_max_processing: bool = True  # H7: nobody reclaims from a live owner
    reclaim_reads_ledger: bool = True  # H13: before WORKER_LOST

    # Ledger
    settle_is_one_transaction: bool = True  # I5: ledger, row and history commit together
    publish_entry_first: bool = True  # I5: a repeated publish finds the earlier message
    effect_scope_is_destination: bool = True  # H12: (destination, key), not the key alone
    rereads_before_sending: bool = True  # H13: for rows that were lost or tried before
    replayed_counts_as_tried: bool = True  # H13+: though its attempts start at 0 again
    reserves_effect: bool = True  # H13+: two deliveries of one (destination, key) are never sent at the same time
    every_abort_reads_ledger: bool = True  # H13+: an own effect entry that succeeded turns any abort into succeeded
    done_reads_ledger: bool = True  # H13+: a Done that finds another content recorded is a conflict, not a success
    stale_success_recorded: bool = True  # I7
    stale_failure_leaves_ledger: bool = True  # I7+: a stale worker's failure says nothing
    entry_kept_while_referred: bool = True  # H16

    # Publish, retention
    no_route_is_aborted: bool = True  # H18
    reopen_is_audited: bool = True  # H15
    reopen_is_conditional: bool = True  # H15: still aborted, and still at the epoch that was read
    replay_reopens_entry: bool = True  # H15: failed → accepted
    prune_locks_message: bool = True  # H17: the lock that replay and late fan-out take too

    # Transactional handlers, cancel
    tx_rolls_back_when_lost: bool = True  # H21
    cancel_asks_owner: bool = True  # H22: a flag; the owner settles
    cancel_flag_keeps_epoch: bool = True  # H22+: setting the flag changes neither owner nor state
    cancel_outlives_owner: bool = True  # H22+: a flagged row never becomes claimable again
    replay_clears_cancel: bool = True  # H22+: a cancelled delivery can be replayed

    def without(self, *names: str) -> Fixes:
        """The same with the named fixes taken out."""
        return replace(self, **dict.fromkeys(names, False))
