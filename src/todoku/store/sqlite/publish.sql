-- Publishing: a message with its deliveries.

-- name: publish_message
-- Its deliveries follow in the same transaction (I1).
insert into todoku_message (id, topic, type, key, payload, payload_bytes, content_type, headers, labels,
                            scope, key_hash, digest, created_at)
values (:id, :topic, :type, :key, :payload, :payload_bytes, :content_type, :headers, :labels,
        :scope, :key_hash, :digest, :now)

-- name: publish_labels
-- Only appends, in the transaction that stored the message. What is too long for an index stays with the message alone.
insert or ignore into todoku_label (label, message_seq)
select l.value, m.seq from todoku_message m, json_each(m.labels) l
 where m.id = :id and l.type = 'text' and length(l.value) <= 512

-- name: publish_lane
-- The single writer orders commits, so ids of a lane follow commit order without a lock (I10).
insert into todoku_lane (id, queue, destination, ready_at) values (:lane, :queue, :destination, :now)
    on conflict (id) do nothing

-- name: publish_gate_calls
-- Only appends, as PostgreSQL. Claims process the calls.
insert into todoku_gate_call (queue, destination, gate, key) values (:queue, :destination, :gate, :key)

-- name: publish_delivery
-- The message is in this transaction.
insert into todoku_delivery (message_seq, destination, queue, lane, gate, priority, status, max_attempts, timeout,
                             next_run_at, expires_at, updated_at, reason)
values ((select seq from todoku_message where id = :id), :destination, :queue, :lane, :gate, :priority,
        case when :dead is null then 'pending' else 'aborted' end, :max_attempts, :timeout, :next_run_at,
        coalesce(:expires_at, 9223372036854775807), :now, :dead)

-- name: reopened
-- A fragment: the dead letters of a message. A run whose undo has begun stays what it is (R5).
todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.status = 'aborted'
   and not exists (select 1 from todoku_step s where s.message_seq = m.seq and s.step_key = '~undo')

-- name: publish_audit_reopen
-- Before the reopening it records, in the same transaction.
insert into todoku_audit (at, by, action, target, why)
select :now, 'publisher', 'replay', 'delivery:' || d.id, 'published again with the same key'
  from {reopened}

-- name: publish_reopen_ledger
-- A reopened delivery has not failed any more (H15).
update todoku_ledger set state = 'accepted', updated_at = :now, expires_at = 9223372036854775807
 where state = 'failed' and (scope, key_hash, digest) in (
    select 'effect:' || d.destination, m.key_hash, m.digest from {reopened})

-- name: publish_reopen_lanes
-- A reopened row has the lowest id of its lane, so it is the head again.
insert into todoku_lane (id, queue, destination, ready_at)
select distinct d.lane, d.queue, d.destination, :now from {reopened} and d.lane is not null
    on conflict (id) do update set parked = 0, ready_at = excluded.ready_at

-- name: publish_reopen_gates
-- Before the reopening, in its transaction: a claim that processes the call sees the row waiting.
insert into todoku_gate_call (queue, destination, gate, key)
select d.queue, d.destination, d.gate, m.key from {reopened} and d.gate is not null

-- name: publish_reopen
-- Only `aborted` rows change, under the write lock: of two publishers one reopens (H15).
update todoku_delivery
   set status = 'pending', epoch = epoch + 1, attempts = 0, lost = min(lost, 1), snoozes = 0,
       replay_count = replay_count + 1, reason = null, error = null, fingerprint = null,
       cancel_requested = 0, next_run_at = :now, expires_at = 9223372036854775807, updated_at = :now
 where status = 'aborted' and id in (select d.id from {reopened})

-- name: publish_data_keys
-- Together with the messages it encrypts, in the caller's transaction; a stored key is not stored again.
insert into todoku_data_key (id, day, master_key_id, wrapped, created_at)
select :id, :day, :master_key_id, :wrapped, :now
 where not exists (select 1 from todoku_data_key where id = :id)
