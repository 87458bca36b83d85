-- Runs of workflows: their steps, signals and calls.

-- name: steps
-- Only reads. A worker that has lost the run may read, too: its next write is refused.
select step_key, number, name, kind, state, arguments, result, error, undo, attempts, replay, awaits,
       (wake_at - :now) / 1e6, started_at / 1e6, ended_at / 1e6
  from todoku_step where message_seq = :message_seq order by number, step_key

-- name: held
-- A fragment: the rows whose run this worker owns.
json_each(:rows) s cross join todoku_delivery d
    on d.id = json_extract(s.value, '$.delivery') and d.epoch = json_extract(s.value, '$.epoch')
   and d.worker_id = :worker

-- name: store_steps
-- Fenced by (id, epoch, worker) under the write lock (R3). A stored result is never overwritten: after a lost reply the
-- same row is written again, and stays. Progress starts the count of attempts anew (R6). Returns the rows the worker
-- may write.
select json_extract(s.value, '$.delivery'), json_extract(s.value, '$.step_key') from {held};
insert into todoku_step (message_seq, step_key, number, name, kind, state, arguments, result, error, undo, attempts,
                         replay, awaits, wake_at, started_at, ended_at, epoch)
select json_extract(s.value, '$.message_seq'), json_extract(s.value, '$.step_key'), json_extract(s.value, '$.number'),
       json_extract(s.value, '$.name'), json_extract(s.value, '$.kind'), json_extract(s.value, '$.state'),
       json_extract(s.value, '$.arguments'), json_extract(s.value, '$.result'), json_extract(s.value, '$.error'),
       json_extract(s.value, '$.undo'), json_extract(s.value, '$.attempts'), json_extract(s.value, '$.replay'),
       json_extract(s.value, '$.awaits'), :now + cast(json_extract(s.value, '$.wait') * 1000000 as integer),
       :now - cast(json_extract(s.value, '$.took') * 1000000 as integer),
       case when json_extract(s.value, '$.state') <> 'open' then :now end, json_extract(s.value, '$.epoch')
  from {held} where true
    on conflict (message_seq, step_key) do update
       set state = excluded.state, result = excluded.result, error = excluded.error, attempts = excluded.attempts,
           replay = excluded.replay, awaits = excluded.awaits, wake_at = excluded.wake_at,
           ended_at = excluded.ended_at, epoch = excluded.epoch
     where todoku_step.state in ('open', 'failed', 'fatal');
update todoku_delivery set attempts = 1, lost = 0
 where (attempts > 1 or lost > 0)
   and id in (select d.id from {held} where json_extract(s.value, '$.state') = 'done')

-- name: stored_step
-- Only reads, in the transaction that would write it: what a commit whose reply was lost has stored.
select state, result from todoku_step where message_seq = :message_seq and step_key = :step_key

-- name: children
-- Only reads.
select arguments from todoku_step where message_seq = :message_seq and step_key = :step_key

-- name: lock_children
-- Under the write lock: the owner of the run, and another prune, wait for this commit.
select arguments from todoku_step
 where message_seq = :message_seq and step_key = :step_key and state = 'open'

-- name: keep_children
-- The step was locked by `lock_children`. It only learns what stays true: a success is final.
update todoku_step set arguments = :arguments where message_seq = :message_seq and step_key = :step_key and state = 'open'

-- name: take_signal
-- The oldest that no wait has. Committed with the step it is delivered to, which is fenced: delivered once (R2).
update todoku_signal set step_key = :step_key
 where id = (select id from todoku_signal
              where message_seq = :message_seq and name = :name and step_key is null order by id limit 1)
returning payload

-- name: called_run
-- A fragment: the call, its run, and of an encrypted run its id and that of its data key, which is in the sealed bytes.
-- As text, which every driver returns alike.
id, message_seq,
(select json_array(m.id, hex(substr(m.payload_bytes, 2, 16)))
   from todoku_message m where m.seq = message_seq and instr(m.content_type, :sealed) = 1)

-- name: call_run
-- The first statement of a signal, in the caller's transaction. It only appends, and it writes before anything is read:
-- a transaction that has read could not become a writer once another one has written. Only for a run that has not ended.
insert into todoku_run_call (message_seq, awaits)
select m.seq, :name from todoku_message m cross join todoku_delivery d indexed by todoku_delivery_message
    on d.message_seq = m.seq
 where m.id = :message_id and d.status <> 'aborted'
returning {called_run}

-- name: call_keyed_run
-- As `call_run`, for the run that has this idempotency key. Two are two rows, which the caller takes back.
insert into todoku_run_call (message_seq, awaits)
select m.seq, :name from todoku_message m indexed by todoku_message_key_hash
  cross join todoku_delivery d indexed by todoku_delivery_message on d.message_seq = m.seq
 where m.key_hash = :key_hash and m.scope in (select value from json_each(:scopes)) and d.status <> 'aborted'
returning {called_run}

-- name: take_back_call
-- A row of this transaction's own: nobody else has seen it.
delete from todoku_run_call where id = :id

-- name: run_data_keys
-- Only reads, in the caller's transaction: the data key of an encrypted run, also of one that this transaction has
-- started. Bytes are read as text, which every driver returns alike.
select day, master_key_id, hex(wrapped) from todoku_data_key where id = :id order by seq

-- name: signal
-- With `call_run`: the value, for the oldest wait that has none.
insert into todoku_signal (message_seq, name, payload, created_at) values (:message_seq, :name, :payload, :now)

-- name: keyed_runs
-- Only reads: the runs that were started with this idempotency key, the newest first, and whether each has ended.
select m.id, m.topic, not exists (select 1 from todoku_delivery d indexed by todoku_delivery_message
                                   where d.message_seq = m.seq and d.status <> 'aborted')
  from todoku_message m indexed by todoku_message_key_hash
 where m.key_hash = :key_hash and m.headers like :mark and m.scope = 'publish:' || m.topic
 order by m.seq desc limit :most

-- name: call_runs
-- Only appends, in the transaction that ends these batches: the runs that wait for them are woken by a claim.
insert into todoku_run_call (message_seq, awaits)
select message_seq, awaits from todoku_step indexed by todoku_step_awaits
 where awaits in (select value from json_each(:awaits)) and state = 'open' and awaits is not null

-- name: has_run_calls
-- Only reads.
select exists (select 1 from todoku_run_call)

-- name: called
-- A fragment: the next calls whose run is not in flight.
select c.id, c.message_seq, c.awaits from todoku_run_call c
 where not exists (select 1 from todoku_delivery d indexed by todoku_delivery_message
                    where d.message_seq = c.message_seq and d.status = 'sending')
 order by c.id limit :most

-- name: woken
-- A fragment: the runs among them that wait for what has happened.
select d.id from ({called}) c cross join todoku_delivery d indexed by todoku_delivery_message
    on d.message_seq = c.message_seq and d.status = 'pending' and d.next_run_at > :now
  cross join todoku_step s on s.message_seq = c.message_seq and s.awaits = c.awaits and s.state = 'open'

-- name: heed_run_calls
-- Calls of a run in flight stay: it may park without having seen what was sent (R2). One write lock for everything: a run
-- that waits is woken if an open step waits for this, and every other call is removed. Returns the lane and the gate of
-- each woken run, for the caller to refresh in this transaction.
select lane, gate from todoku_delivery where id in ({woken});
update todoku_delivery set next_run_at = :now, epoch = epoch + 1, updated_at = :now where id in ({woken});
delete from todoku_run_call where id in (select id from ({called}))

-- name: run_of
-- Only reads: the delivery of a run, if it has not ended well, and whether its steps are being undone.
select d.id, d.status, d.reason, d.epoch, m.seq,
       exists (select 1 from todoku_step s where s.message_seq = m.seq and s.step_key = '~undo')
  from todoku_message m left join todoku_delivery d on d.message_seq = m.seq where m.id = :message_id

-- name: undoing
-- Only reads, under the write lock: the runs among these deliveries whose undo has begun. They never run again (R5).
select d.id from todoku_delivery d cross join todoku_step s on s.message_seq = d.message_seq and s.step_key = '~undo'
 where d.id in (select value from json_each(:ids))

-- name: undoable
-- Only reads, in the transaction that ends these runs: those that left something to undo, or children. Not
-- those that another run goes on with (R14).
select m.id, m.seq from todoku_message m
 where m.id in (select value from json_each(:message_ids))
   and exists (select 1 from todoku_step s
                where s.message_seq = m.seq
                  and ((s.kind = 'step' and s.undo is not null and s.state in ('open', 'done', 'failed', 'fatal'))
                    or (s.kind = 'children' and s.state = 'open')))
   and not exists (select 1 from todoku_step r
                    where r.message_seq = m.seq and r.step_key = 'restart:=' and r.kind = 'publish' and r.state = 'done')
 order by m.seq

-- name: mark_undo
-- In the transaction that publishes the follow-up. The second of two finds the mark, and publishes nothing.
insert into todoku_step (message_seq, step_key, number, name, kind, state, arguments, started_at, epoch)
values (:message_seq, '~undo', 1000000, 'undo', 'undo', 'open', :arguments, :now, 0)
    on conflict (message_seq, step_key) do nothing
returning 1

-- name: mark_undone
-- Of a run that has ended: no worker writes its steps but the one that undoes them, whose own delivery fences it.
update todoku_step set state = 'undone' where message_seq = :message_seq and step_key = :step_key

-- name: rewind_steps
-- The run is a dead letter, under the write lock. Steps keep their rows under another key, for the audit.
update todoku_step
   set state = 'rewound', step_key = '~' || :replay || ' ' || step_key, awaits = null
 where message_seq = :message_seq and step_key in (select value from json_each(:step_keys))
returning step_key

-- name: untake_signals
-- With `rewind_steps`: what was delivered to a rewound wait is there for the next one.
update todoku_signal set step_key = null
 where message_seq = :message_seq and step_key in (select value from json_each(:step_keys))

-- name: has_steps
-- Only reads.
select exists (select 1 from todoku_step)

-- name: sleeps_in
-- A fragment: deliveries of one place whose time comes between two others, from the index.
todoku_delivery d indexed by todoku_delivery_due
 where d.queue = :queue and d.destination = :destination and d.priority = :priority
   and d.status in ('pending', 'failed') and d.lane is null and d.lost = 0 and d.gate is null
   and d.next_run_at > :now + cast(:soonest * 1000000 as integer)
   and d.next_run_at <= :now + cast(:latest * 1000000 as integer)

-- name: parked_number
-- Only reads a limited number of rows, from the index alone.
select count(*) from (select 1 from {sleeps_in} order by d.next_run_at limit :most)

-- name: parked_sample
-- Only reads a limited number of runs, each with its steps by their key. A run that waits between attempts has none.
select (select s.kind from todoku_step s
         where s.message_seq = few.message_seq and s.state = 'open' and few.status = 'pending'
           and (s.awaits is not null or s.wake_at > :now) limit 1)
  from (select d.message_seq, d.status from {sleeps_in} order by d.next_run_at limit :most) few
