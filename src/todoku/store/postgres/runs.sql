-- Runs of workflows: their steps, signals and calls.

-- name: steps
-- Only reads. A worker that has lost the run may read, too: its next write is refused.
select step_key, number, name, kind, state, arguments, result, error, undo, attempts, replay, awaits,
       date_part('epoch', wake_at - todoku_now()), date_part('epoch', started_at), date_part('epoch', ended_at)
  from todoku_step where message_seq = :message_seq order by number, step_key

-- name: store_steps
-- The fence: the delivery is locked where id, epoch and worker match, until the commit, so no reclaim frees it in
-- between (R3). Deliveries come in order (H11). A stored result is never overwritten: after a lost reply the same row
-- is written again, and stays. Progress starts the count of attempts anew (R6). Returns the rows the worker may write.
with held as materialized (
    select s.*
      from json_to_recordset(:rows::json)
           as s(delivery bigint, epoch bigint, message_seq bigint, step_key text, number int, name text, kind text,
                state text, arguments text, result text, error text, undo text, attempts int, replay int, awaits text,
                wait float8, took float8)
     cross join lateral (
        select id from todoku_delivery
         where id = s.delivery and epoch = s.epoch and worker_id = :worker limit 1 for no key update) d
), progress as (
    update todoku_delivery set attempts = 1, lost = 0
     where id = any (array(select delivery from held where state = 'done')) and (attempts > 1 or lost > 0)
), stored as (
    insert into todoku_step (message_seq, step_key, number, name, kind, state, arguments, result, error, undo, attempts,
                             replay, awaits, wake_at, started_at, ended_at, epoch)
    select message_seq, step_key, number, name, kind, state, arguments, result, error, undo, attempts, replay, awaits,
           todoku_now() + make_interval(secs => wait), todoku_now() - make_interval(secs => took),
           case when state <> 'open' then todoku_now() end, epoch
      from held
        on conflict (message_seq, step_key) do update
           set state = excluded.state, result = excluded.result, error = excluded.error,
               attempts = excluded.attempts, replay = excluded.replay, awaits = excluded.awaits,
               wake_at = excluded.wake_at, ended_at = excluded.ended_at, epoch = excluded.epoch
         where todoku_step.state in ('open', 'failed', 'fatal')
)
select delivery, step_key from held

-- name: stored_step
-- Only reads, in the transaction that would write it: what a commit whose reply was lost has stored.
select state, result from todoku_step where message_seq = :message_seq and step_key = :step_key

-- name: children
-- Only reads.
select arguments from todoku_step where message_seq = :message_seq and step_key = :step_key

-- name: lock_children
-- The owner of the run, which would store how they ended, waits for this commit; so does another prune.
select arguments from todoku_step
 where message_seq = :message_seq and step_key = :step_key and state = 'open' for update

-- name: keep_children
-- The step was locked by `lock_children`. It only learns what stays true: a success is final.
update todoku_step set arguments = :arguments where message_seq = :message_seq and step_key = :step_key and state = 'open'

-- name: take_signal
-- The oldest that no wait has. Committed with the step it is delivered to, which is fenced: delivered once (R2). One that
-- another wait of the run takes at the same time is locked, and passed over once that has committed.
update todoku_signal set step_key = :step_key
 where id = (select id from todoku_signal
              where message_seq = :message_seq and name = :name and step_key is null order by id limit 1 for update)
returning payload

-- name: called_run
-- A fragment: the call, its run, and of an encrypted run its id and that of its data key, which is in the sealed bytes.
-- As text, which every driver returns alike.
id, message_seq,
(select cast(json_build_array(m.id, encode(substring(m.payload_bytes from 2 for 16), 'hex')) as text)
   from todoku_message m where m.seq = message_seq and starts_with(m.content_type, cast(:sealed as text)))

-- name: call_run
-- The first statement of a signal, in the caller's transaction. It only appends: it waits for no worker, and no worker
-- waits for it (R2). Only for a run that has not ended; a claim wakes it.
insert into todoku_run_call (message_seq, awaits)
select m.seq, cast(:name as text) from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = cast(cast(:message_id as text) as uuid) and d.status <> 'aborted'
returning {called_run}

-- name: call_keyed_run
-- As `call_run`, for the run that has this idempotency key. Two are two rows, which the caller takes back.
insert into todoku_run_call (message_seq, awaits)
select m.seq, cast(:name as text) from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.key_hash = cast(:key_hash as text)
   and m.scope = any (array(select json_array_elements_text(cast(cast(:scopes as text) as json))))
   and d.status <> 'aborted'
returning {called_run}

-- name: take_back_call
-- A row of this transaction's own: nobody else has seen it.
delete from todoku_run_call where id = cast(:id as bigint)

-- name: run_data_keys
-- Only reads, in the caller's transaction: the data key of an encrypted run, also of one that this transaction has
-- started. Bytes are read as text, which every driver returns alike.
select day, master_key_id, encode(wrapped, 'hex') from todoku_data_key
 where id = cast(cast(:id as text) as uuid) order by seq

-- name: signal
-- With `call_run`: the value, for the oldest wait that has none. Idle workers get a notice, as of a publish.
with sent as (
    insert into todoku_signal (message_seq, name, payload, created_at)
    values (cast(:message_seq as bigint), cast(:name as text), cast(:payload as text), todoku_now())
)
select count(pg_notify('todoku', ''))
  from (select from todoku_worker
         where (select cast(:notify as boolean)) and state = 'idle' and expires_at > todoku_now()
         limit 1) idle

-- name: keyed_runs
-- Only reads: the runs that were started with this idempotency key, the newest first, and whether each has ended.
select m.id, m.topic, not exists (select from todoku_delivery d where d.message_seq = m.seq and d.status <> 'aborted')
  from todoku_message m
 where m.key_hash = :key_hash and m.headers::text like :mark and m.scope = 'publish:' || m.topic
 order by m.seq desc limit :most

-- name: call_runs
-- Only appends, in the transaction that ends these batches: the runs that wait for them are woken by a claim.
insert into todoku_run_call (message_seq, awaits)
select message_seq, awaits from todoku_step where awaits = any (:awaits::text[]) and state = 'open'

-- name: has_run_calls
-- Only reads.
select exists (select from todoku_run_call)

-- name: heed_run_calls
-- Calls of a run in flight stay: it may park without having seen what was sent (R2). A run that waits is locked, so that
-- it is neither claimed nor given up meanwhile; it is woken if an open step waits for this. Calls of runs that are over,
-- or run again by themselves, are removed. What another connection has locked is left for later. Returns the lane and
-- the gate of each woken run, for the caller to refresh in this transaction.
with call as materialized (
    select c.id, c.message_seq, c.awaits from todoku_run_call c
     where not exists (select from todoku_delivery d
                        where d.message_seq = c.message_seq and d.status = 'sending' offset 0)
     order by c.id limit :most for update skip locked
), run as materialized (
    select id, message_seq, status, gate from todoku_delivery
     where message_seq = any (array(select message_seq from call)) and status <> 'sending'
     order by id for update skip locked
), woken as (
    update todoku_delivery d set next_run_at = todoku_now(), epoch = epoch + 1, updated_at = todoku_now()
      from run
     where d.id = any (array(select id from run)) and d.id = run.id and run.status = 'pending'
       and d.next_run_at > todoku_now()
       and exists (select from call c join todoku_step s on s.message_seq = c.message_seq and s.awaits = c.awaits
                    where c.message_seq = run.message_seq and s.state = 'open')
    returning d.lane, d.gate
), heeded as (
    delete from todoku_run_call
     where id = any (array(
        select c.id from call c
         where exists (select from run where run.message_seq = c.message_seq)
            or not exists (select from todoku_delivery d where d.message_seq = c.message_seq)))
)
select lane, gate from woken

-- name: run_of
-- Only reads: the delivery of a run, if it has not ended well, and whether its steps are being undone.
select d.id, d.status, d.reason, d.epoch, m.seq,
       exists (select from todoku_step s where s.message_seq = m.seq and s.step_key = '~undo')
  from todoku_message m left join todoku_delivery d on d.message_seq = m.seq where m.id = :message_id::uuid

-- name: undoing
-- Only reads, with the rows locked: the runs among these deliveries whose undo has begun. They never run again (R5).
select d.id from todoku_delivery d join todoku_step s on s.message_seq = d.message_seq and s.step_key = '~undo'
 where d.id = any (:ids::bigint[])

-- name: undoable
-- Only reads, in the transaction that ends these runs: those that left something to undo, or children. Not
-- those that another run goes on with (R14).
select m.id::text, m.seq from todoku_message m
 where m.id = any (:message_ids::text[]::uuid[])
   and exists (select from todoku_step s
                where s.message_seq = m.seq
                  and ((s.kind = 'step' and s.undo is not null and s.state in ('open', 'done', 'failed', 'fatal'))
                    or (s.kind = 'children' and s.state = 'open')) offset 0)
   and not exists (select from todoku_step r
                    where r.message_seq = m.seq and r.step_key = 'restart:=' and r.kind = 'publish' and r.state = 'done')
 order by m.seq

-- name: mark_undo
-- In the transaction that publishes the follow-up. The second of two finds the mark, and publishes nothing.
insert into todoku_step (message_seq, step_key, number, name, kind, state, arguments, started_at, epoch)
values (:message_seq, '~undo', 1000000, 'undo', 'undo', 'open', :arguments, todoku_now(), 0)
    on conflict (message_seq, step_key) do nothing
returning 1

-- name: mark_undone
-- Of a run that has ended: no worker writes its steps but the one that undoes them, whose own delivery fences it.
update todoku_step set state = 'undone' where message_seq = :message_seq and step_key = :step_key

-- name: rewind_steps
-- The run is a dead letter and locked by this transaction. Steps keep their rows under another key, for the audit.
update todoku_step
   set state = 'rewound', step_key = '~' || :replay::text || ' ' || step_key, awaits = null
 where message_seq = :message_seq and step_key = any (:step_keys::text[])
returning step_key

-- name: untake_signals
-- With `rewind_steps`: what was delivered to a rewound wait is there for the next one.
update todoku_signal set step_key = null
 where message_seq = :message_seq and step_key = any (:step_keys::text[])

-- name: has_steps
-- Only reads.
select exists (select from todoku_step)

-- name: sleeps_in
-- A fragment: deliveries of one place whose time comes between two others, from the index.
todoku_delivery d
 where d.queue = :queue and d.destination = :destination and d.priority = :priority
   and d.status in ('pending', 'failed') and d.lane is null and d.lost = 0 and d.gate is null
   and d.next_run_at > todoku_now() + make_interval(secs => :soonest)
   and d.next_run_at <= todoku_now() + make_interval(secs => :latest)

-- name: parked_number
-- Only reads a limited number of rows, from the index alone.
select count(*) from (select from {sleeps_in} order by d.next_run_at limit :most) parked

-- name: parked_sample
-- Only reads a limited number of runs, each with its steps by their key. A run that waits between attempts has none.
select (select s.kind from todoku_step s
         where s.message_seq = few.message_seq and s.state = 'open' and few.status = 'pending'
           and (s.awaits is not null or s.wake_at > todoku_now()) limit 1)
  from (select d.message_seq, d.status from {sleeps_in} order by d.next_run_at limit :most) few
