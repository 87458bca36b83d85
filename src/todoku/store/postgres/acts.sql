-- Acts of operators on deliveries.

-- name: pick
-- Locks the rows it returns, in id order, and skips rows that another transaction is changing (H11).
select d.id, d.lane, d.gate, d.destination, d.queue, d.status, d.reason, m.key, m.key_hash, m.digest, m.id, m.scope,
       d.replay_count
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:among::text[] is null or d.status = any (:among::text[])) and d.id > :after
 order by d.id limit :most for update of d skip locked

-- name: replay
-- The rows are locked and `aborted`; attempts start at 0, the epoch keeps rising (I4, I9). A row whose workers died
-- stays a suspect: it is still claimed alone (H6).
update todoku_delivery
   set status = 'pending', epoch = epoch + 1, attempts = 0, lost = least(lost, 1), snoozes = 0,
       replay_count = replay_count + 1, reason = null, error = null, fingerprint = null,
       cancel_requested = false, next_run_at = todoku_now(), expires_at = 'infinity', updated_at = todoku_now()
 where id = any (:ids::bigint[]) and status = 'aborted'
returning id

-- name: replay_ledger
-- A replayed delivery has not failed any more: a repeated request must not get the old failure (H15).
update todoku_ledger l set state = 'accepted', updated_at = todoku_now(), expires_at = 'infinity'
  from json_to_recordset(:entries::json) as s(scope text, key_hash text, digest text)
 where l.scope = s.scope and l.key_hash = s.key_hash and l.digest = s.digest and l.state = 'failed'

-- name: once_reopen
-- As replay_ledger, for entries of `once` in the scope of the destination. Only failed entries change: a success
-- stays.
update todoku_ledger l set state = 'accepted', updated_at = todoku_now()
  from json_to_recordset(:entries::json) as s(scope text, key_hash text)
 where l.scope = s.scope and l.key_hash = s.key_hash and l.state = 'failed'

-- name: replay_lanes
-- The lanes' locks are held. A replayed row has the lowest id of its lane, so it is the head again.
insert into todoku_lane (id, queue, destination, ready_at)
select distinct on (lane) lane, queue, destination, todoku_now()
  from json_to_recordset(:lanes::json) as s(lane bigint, queue text, destination text)
 order by lane
    on conflict (id) do update set ready_at = excluded.ready_at

-- name: cancel
-- One statement decides under the row lock: aborts waiting rows and marks running ones for their owner (H22). A
-- finished delivery has no row.
update todoku_delivery
   set status = case status when 'sending' then 'sending' else 'aborted' end,
       epoch = epoch + case status when 'sending' then 0 else 1 end,
       cancel_requested = status = 'sending',
       reason = case status when 'sending' then reason else 'CANCELLED' end,
       error = case status when 'sending' then error else :why end,
       fingerprint = case status when 'sending' then fingerprint end, updated_at = todoku_now()
 where id = any (:ids::bigint[]) and status <> 'aborted'
returning id, status

-- name: settle_by_hand_done
-- Never a running row: its owner settles it. Ledger first, in this transaction (I5).
with gone as (
    delete from todoku_delivery where id = any (:ids::bigint[]) and status <> 'sending'
    returning id, epoch, message_seq, destination, queue, attempts, replay_count
)
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count)
select todoku_now(), id, epoch, message_seq, destination, queue, attempts, replay_count from gone
returning delivery_id

-- name: settle_by_hand_result
-- Before the delivery is removed, in the same transaction. The rows are locked and do not run.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select id, message_seq, :result::json, todoku_now() from todoku_delivery
 where id = any (:ids::bigint[]) and status <> 'sending'
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: settle_by_hand_aborted
-- Never a running row: its owner settles it.
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'BY_HAND', error = :why, fingerprint = null,
       updated_at = todoku_now()
 where id = any (:ids::bigint[]) and status in ('pending', 'failed')
returning id

-- name: settle_by_hand_ledger
-- As settle_effects: the first success stays; a failure of another digest is not changed (I5). Sorted by key (H11).
insert into todoku_ledger (scope, key_hash, digest, state, message_id, http_status, response, created_at,
                           updated_at, expires_at)
select distinct on (scope, key_hash) scope, key_hash, digest, :state, id,
       case :state when 'succeeded' then 200 end, :response::json, todoku_now(), todoku_now(),
       todoku_now() + make_interval(secs => :ttl)
  from json_to_recordset(:entries::json) as s(scope text, key_hash text, digest text, id uuid)
 order by scope, key_hash
    on conflict (scope, key_hash) do update
       set digest = excluded.digest, message_id = excluded.message_id, state = excluded.state,
           http_status = excluded.http_status, response = excluded.response,
           updated_at = excluded.updated_at, expires_at = excluded.expires_at
     where (todoku_ledger.digest = excluded.digest or excluded.state = 'succeeded')
       and todoku_ledger.state <> 'succeeded'

-- name: purge
-- Only dead letters; the audit row stays.
delete from todoku_delivery where id = any (:ids::bigint[]) and status = 'aborted' returning id

-- name: history_chunk
-- Only reads: the next rows of the history in order, and whether each matches the filter. Reads a fixed number of
-- rows, matching or not.
select h.delivery_id, h.message_seq,
       coalesce(:topic::text is null or m.topic = :topic, false)
       and (:until::timestamptz is null or h.finished_at < :until)
  from (select delivery_id, message_seq, finished_at from todoku_history
         where (message_seq, delivery_id) > (:after_seq::bigint, :after_id::bigint)
         order by message_seq, delivery_id limit :most) h
  left join lateral (select topic from todoku_message where seq = h.message_seq limit 1) m on true
 order by h.message_seq, h.delivery_id

-- name: clear_history
-- Succeeded deliveries have ended: no worker writes to them. Of two concurrent operators the second removes nothing.
delete from todoku_history where message_seq = any (:seqs::bigint[]) and delivery_id = any (:ids::bigint[])
returning delivery_id

-- name: clear_attempts
-- Their deliveries were removed in this transaction.
delete from todoku_attempt where delivery_id = any (:ids::bigint[])

-- name: clear_results
-- Their deliveries were removed in this transaction.
delete from todoku_result where delivery_id = any (:ids::bigint[])

-- name: clear_messages
-- As prune_messages: only when no delivery of it is left, finished or not (I1).
with gone as (
    delete from todoku_message m
     where m.seq = any (:seqs::bigint[])
       and not exists (select from todoku_delivery d where d.message_seq = m.seq offset 0)
       and not exists (select from todoku_history h where h.message_seq = m.seq offset 0)
    returning m.seq, m.labels
), stepless as (
    delete from todoku_step where message_seq = any (array(select seq from gone))
), signalless as (
    delete from todoku_signal where message_seq = any (array(select seq from gone))
)
delete from todoku_label l
 using (select seq, label from gone cross join lateral json_array_elements_text(labels) s(label)) g
 where l.label = g.label and l.message_seq = g.seq
