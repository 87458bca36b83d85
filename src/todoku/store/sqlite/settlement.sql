-- Settling and releasing claims.

-- name: effects
-- Only reads, just before a send that may be a repetition (H13).
select json_extract(s.value, '$.id'), l.state, l.digest from json_each(:entries) s
  join todoku_ledger l on l.scope = json_extract(s.value, '$.scope')
   and l.key_hash = json_extract(s.value, '$.key_hash')

-- name: settle_effects
-- As PostgreSQL: a real success is recorded even by a stale worker (I7), unless it is that of a run (R12); a failure only
-- by the owner. The first
-- success stays, and is retained for 48 hours after the last (H16); another digest never overwrites it (I5), but a
-- success overwrites any entry that is not one, of any caller.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, http_status, response, created_at,
                           updated_at, expires_at)
select json_extract(s.value, '$.scope'), json_extract(s.value, '$.key_hash'), json_extract(s.value, '$.digest'),
       json_extract(s.value, '$.state'), json_extract(s.value, '$.message_id'),
       case json_extract(s.value, '$.state') when 'succeeded' then 200 end, json_extract(s.value, '$.response'),
       :now, :now, :now + cast(:ttl * 1000000 as integer)
  from json_each(:entries) s
 where not json_extract(s.value, '$.fenced')
    or exists (select 1 from todoku_delivery d where d.id = json_extract(s.value, '$.id')
                  and d.epoch = json_extract(s.value, '$.epoch') and d.worker_id = :worker)
 order by json_extract(s.value, '$.state') desc
    on conflict (scope, key_hash) do update
       set digest = excluded.digest, state = excluded.state, http_status = excluded.http_status,
           expires_at = excluded.expires_at,
           message_id = case todoku_ledger.state when 'succeeded' then todoku_ledger.message_id
                                                 else excluded.message_id end,
           response = case todoku_ledger.state when 'succeeded' then todoku_ledger.response
                                               else excluded.response end,
           updated_at = case todoku_ledger.state when 'succeeded' then todoku_ledger.updated_at
                                                 else excluded.updated_at end
     where case excluded.state
           when 'succeeded' then todoku_ledger.digest = excluded.digest or todoku_ledger.state <> 'succeeded'
           else todoku_ledger.digest = excluded.digest and todoku_ledger.state <> 'succeeded' end

-- name: settle_reservations
-- The publish entry is retained as long after its last success as the effect entry (H16).
update todoku_ledger set expires_at = :now + cast(:ttl * 1000000 as integer)
 where (scope, key_hash) in (select json_extract(value, '$.scope'), json_extract(value, '$.key_hash')
                               from json_each(:entries))

-- name: settle_done
-- Fenced by (id, epoch, worker); the row is moved from `delivery` to `history` under one write lock. A timed token is
-- the epoch and, in its lower 31 bits, the milliseconds of the run (all set: unknown). Returns the tokens the worker
-- does not own, which are searched only if a row is missing.
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                            replay_count, worker_id, run_ms)
select :now, d.id, d.epoch, d.message_seq, d.destination, d.queue, d.attempts, d.replay_count, :worker,
       nullif(s.value & 2147483647, 2147483647)
  from json_each(:tokens) s cross join todoku_delivery d
    on d.id = cast(s.key as integer) and d.epoch = s.value >> 31 and d.worker_id = :worker;
select cast(s.key as integer) from json_each(:tokens) s
 where changes() < :number and not exists (
    select 1 from todoku_delivery d
     where d.id = cast(s.key as integer) and d.epoch = s.value >> 31 and d.worker_id = :worker);
delete from todoku_delivery where id in (
    select d.id from json_each(:tokens) s cross join todoku_delivery d
        on d.id = cast(s.key as integer) and d.epoch = s.value >> 31 and d.worker_id = :worker)

-- name: settle_rest
-- Fenced as settle_done. The failed attempt is written with its epoch before the row changes (H4), and with the
-- max_attempts the worker used. A run that parks has not killed its worker: it is no suspect any more. Returns the tokens the worker does not own, and the rows that would be retried but
-- were cancelled meanwhile.
select json_extract(s.value, '$.id'), d.id is not null from json_each(:rows) s
  left join todoku_delivery d
    on d.id = json_extract(s.value, '$.id') and d.epoch = json_extract(s.value, '$.epoch') and d.worker_id = :worker
 where d.id is null or (d.cancel_requested and json_extract(s.value, '$.status') <> 'aborted');
insert into todoku_attempt (delivery_id, replay, number, epoch, started_at, ended_at, reason, error, worker_id,
                            response_status, response, message_seq, traceback, fingerprint, run_ms, final)
select d.id, d.replay_count, d.attempts, d.epoch, d.claimed_at, :now, json_extract(s.value, '$.reason'),
       json_extract(s.value, '$.error'), :worker, json_extract(s.value, '$.response.status'),
       json_extract(s.value, '$.response'), d.message_seq, json_extract(s.value, '$.traceback'),
       json_extract(s.value, '$.fingerprint'), json_extract(s.value, '$.run_ms'),
       d.cancel_requested or json_extract(s.value, '$.status') = 'aborted'
  from json_each(:rows) s cross join todoku_delivery d
    on d.id = json_extract(s.value, '$.id') and d.epoch = json_extract(s.value, '$.epoch')
   and d.worker_id = :worker
 where json_extract(s.value, '$.status') <> 'pending';
update todoku_delivery as d
   set status = case when d.cancel_requested then 'aborted' else json_extract(s.value, '$.status') end,
       reason = case when d.cancel_requested and json_extract(s.value, '$.status') <> 'aborted' then 'CANCELLED'
                     else json_extract(s.value, '$.reason') end,
       error = case when d.cancel_requested and json_extract(s.value, '$.status') <> 'aborted' then {cancelled}
                    else json_extract(s.value, '$.error') end,
       fingerprint = case when d.cancel_requested and json_extract(s.value, '$.status') <> 'aborted' then null
                          else json_extract(s.value, '$.fingerprint') end,
       epoch = d.epoch + 1, worker_id = null, cancel_requested = 0,
       attempts = d.attempts - json_extract(s.value, '$.given_back'),
       snoozes = d.snoozes + json_extract(s.value, '$.snoozed'),
       max_attempts = json_extract(s.value, '$.max_attempts'),
       lost = case json_extract(s.value, '$.parked') when 1 then 0 else d.lost end,
       next_run_at = :now + cast(json_extract(s.value, '$.delay') * 1000000 as integer), updated_at = :now
  from json_each(:rows) s
 where d.id = json_extract(s.value, '$.id') and d.epoch = json_extract(s.value, '$.epoch') and d.worker_id = :worker

-- name: cancelled
-- A fragment: a cancellation stays valid if the owner did not see it, or died before it could obey (H22).
'cancelled while it ran'

-- name: settle_results
-- The delivery was settled by this worker in this transaction.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select json_extract(value, '$.delivery_id'), json_extract(value, '$.message_seq'), json_extract(value, '$.result'), :now
  from json_each(:rows) where true
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: settled_before
-- Only reads: which tokens this worker already settled, when the reply to its commit was lost (H4).
select h.delivery_id, h.epoch from todoku_history h
 where h.message_seq in (select value from json_each(:message_seqs))
   and h.delivery_id in (select value from json_each(:ids)) and h.worker_id = :worker
union all
select a.delivery_id, a.epoch from todoku_attempt a
 where a.delivery_id in (select value from json_each(:ids)) and a.worker_id = :worker

-- name: release
-- Fenced; the attempt never started, so it is not counted (I4). A token works once: a repetition changes nothing.
update todoku_delivery as d
   set status = case when cancel_requested then 'aborted' else 'pending' end,
       reason = case when cancel_requested then 'CANCELLED' else d.reason end,
       error = case when cancel_requested then {cancelled} else d.error end,
       fingerprint = case when cancel_requested then null else d.fingerprint end,
       epoch = d.epoch + 1, worker_id = null, attempts = d.attempts - 1, cancel_requested = 0, updated_at = :now,
       next_run_at = case when :delay > 0 then :now + cast(:delay * 1000000 as integer) else d.next_run_at end
  from json_each(:tokens) s
 where d.id = cast(s.key as integer) and d.epoch = s.value and d.worker_id = :worker
returning id, status
