-- Acts of operators on deliveries.

-- name: pick
-- The write lock is held: the returned rows cannot change before the act is done.
select d.id, d.lane, d.gate, d.destination, d.queue, d.status, d.reason, m.key, m.key_hash, m.digest, m.id, m.scope,
       d.replay_count
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:among is null or d.status in (select value from json_each(:among))) and d.id > :after
 order by d.id limit :most

-- name: replay
-- The rows are `aborted`; attempts start at 0, the epoch keeps rising (I4, I9). A row whose workers died stays a
-- suspect: it is still claimed alone (H6).
update todoku_delivery
   set status = 'pending', epoch = epoch + 1, attempts = 0, lost = min(lost, 1), snoozes = 0,
       replay_count = replay_count + 1, reason = null, error = null, fingerprint = null,
       cancel_requested = 0, next_run_at = :now, expires_at = 9223372036854775807, updated_at = :now
 where id in (select value from json_each(:ids)) and status = 'aborted'
returning id

-- name: replay_ledger
-- A replayed delivery has not failed any more: a repeated request must not get the old failure (H15).
update todoku_ledger set state = 'accepted', updated_at = :now, expires_at = 9223372036854775807
 where state = 'failed' and (scope, key_hash, digest) in (
    select json_extract(value, '$.scope'), json_extract(value, '$.key_hash'), json_extract(value, '$.digest')
      from json_each(:entries))

-- name: once_reopen
-- As replay_ledger, for entries of `once` in the scope of the destination. Only failed entries change: a success
-- stays.
update todoku_ledger set state = 'accepted', updated_at = :now
 where state = 'failed' and (scope, key_hash) in (
    select json_extract(value, '$.scope'), json_extract(value, '$.key_hash') from json_each(:entries))

-- name: replay_lanes
-- A replayed row has the lowest id of its lane, so it is the head again.
insert into todoku_lane (id, queue, destination, ready_at)
select json_extract(value, '$.lane'), json_extract(value, '$.queue'), json_extract(value, '$.destination'), :now
  from json_each(:lanes) where true
    on conflict (id) do update set ready_at = excluded.ready_at

-- name: cancel
-- Aborts waiting rows and marks running ones for their owner (H22). A finished delivery has no row.
update todoku_delivery
   set status = case status when 'sending' then 'sending' else 'aborted' end,
       epoch = epoch + case status when 'sending' then 0 else 1 end,
       cancel_requested = status = 'sending',
       reason = case status when 'sending' then reason else 'CANCELLED' end,
       error = case status when 'sending' then error else :why end,
       fingerprint = case status when 'sending' then fingerprint end, updated_at = :now
 where id in (select value from json_each(:ids)) and status <> 'aborted'
returning id, status

-- name: settle_by_hand_done
-- Never a running row: its owner settles it. Ledger first, in this transaction (I5).
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count)
select :now, id, epoch, message_seq, destination, queue, attempts, replay_count from todoku_delivery
 where id in (select value from json_each(:ids)) and status <> 'sending'
returning delivery_id;
delete from todoku_delivery where id in (select value from json_each(:ids)) and status <> 'sending'

-- name: settle_by_hand_result
-- Before the delivery is removed, in the same transaction. The rows do not run.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select id, message_seq, :result, :now from todoku_delivery
 where id in (select value from json_each(:ids)) and status <> 'sending'
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: settle_by_hand_aborted
-- Never a running row: its owner settles it.
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'BY_HAND', error = :why, fingerprint = null,
       updated_at = :now
 where id in (select value from json_each(:ids)) and status in ('pending', 'failed')
returning id

-- name: settle_by_hand_ledger
-- As settle_effects: the first success stays; a failure of another digest is not changed (I5).
insert into todoku_ledger (scope, key_hash, digest, state, message_id, http_status, response, created_at,
                           updated_at, expires_at)
select json_extract(value, '$.scope'), json_extract(value, '$.key_hash'), json_extract(value, '$.digest'), :state,
       json_extract(value, '$.id'), case :state when 'succeeded' then 200 end, :response, :now, :now,
       :now + cast(:ttl * 1000000 as integer)
  from json_each(:entries) where true
    on conflict (scope, key_hash) do update
       set digest = excluded.digest, message_id = excluded.message_id, state = excluded.state,
           http_status = excluded.http_status, response = excluded.response,
           updated_at = excluded.updated_at, expires_at = excluded.expires_at
     where (todoku_ledger.digest = excluded.digest or excluded.state = 'succeeded')
       and todoku_ledger.state <> 'succeeded'

-- name: purge
-- Only dead letters; the audit row stays.
delete from todoku_delivery where id in (select value from json_each(:ids)) and status = 'aborted' returning id

-- name: history_chunk
-- Only reads: the next rows of the history in order, and whether each matches the filter. Reads a fixed number of
-- rows, matching or not.
select h.delivery_id, h.message_seq,
       coalesce(:topic is null or m.topic = :topic, 0) and (:until is null or h.finished_at < :until)
  from (select delivery_id, message_seq, finished_at from todoku_history
         where (message_seq, delivery_id) > (:after_seq, :after_id)
         order by message_seq, delivery_id limit :most) h
  left join todoku_message m on m.seq = h.message_seq
 order by h.message_seq, h.delivery_id

-- name: clear_history
-- Succeeded deliveries have ended: no worker writes to them.
delete from todoku_history
 where message_seq in (select value from json_each(:seqs)) and delivery_id in (select value from json_each(:ids))
returning delivery_id

-- name: clear_attempts
-- Their deliveries were removed in this transaction.
delete from todoku_attempt where delivery_id in (select value from json_each(:ids))

-- name: clear_results
-- Their deliveries were removed in this transaction.
delete from todoku_result where delivery_id in (select value from json_each(:ids))

-- name: orphaned_messages
-- A fragment: those of these messages that have no delivery left, finished or not.
select m.seq from todoku_message m
 where m.seq in (select value from json_each(:seqs))
   and not exists (select 1 from todoku_delivery d where d.message_seq = m.seq)
   and not exists (select 1 from todoku_history h where h.message_seq = m.seq)

-- name: clear_messages
-- As prune_messages: only when no delivery of it is left, finished or not (I1).
delete from todoku_label where (label, message_seq) in (
    select l.value, m.seq from todoku_message m, json_each(m.labels) l where m.seq in ({orphaned_messages}));
delete from todoku_signal where message_seq in ({orphaned_messages});
delete from todoku_step where message_seq in ({orphaned_messages});
delete from todoku_message where seq in ({orphaned_messages})
