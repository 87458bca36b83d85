-- Settling and releasing claims.

-- name: effects
-- Only reads, just before a send that may be a repetition (H13).
select s.id, l.state, l.digest
  from json_to_recordset(:entries::json) as s(id bigint, scope text, key_hash text)
 cross join lateral (select state, digest from todoku_ledger
                      where scope = s.scope and key_hash = s.key_hash limit 1) l

-- name: settle_effects
-- A real success is recorded even by a stale worker (I7), unless it is that of a run, whose steps another worker goes on
-- with (R12); a failure only by the owner. The first success stays, and is
-- retained for 48 hours after the last (H16); another digest never overwrites it (I5), but a success overwrites any
-- entry that is not one, of any caller: it must be in the ledger. Sorted by key: no deadlock (H11). The row of a
-- failure is locked, so that no reclaim frees it between this statement and its settlement.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, http_status, response, created_at,
                           updated_at, expires_at)
select distinct on (s.scope, s.key_hash)
       s.scope, s.key_hash, s.digest, s.state, s.message_id, case s.state when 'succeeded' then 200 end,
       s.response::json, todoku_now(), todoku_now(), todoku_now() + make_interval(secs => :ttl)
  from json_to_recordset(:entries::json)
       as s(scope text, key_hash text, digest text, state text, message_id uuid, response text, id bigint,
            epoch bigint, fenced boolean)
  left join lateral (
    select id from todoku_delivery d
     where s.fenced and d.id = s.id and d.epoch = s.epoch and d.worker_id = :worker
     limit 1 for update) held on true
 where not s.fenced or held.id is not null
 order by s.scope, s.key_hash, s.state desc
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
-- The publish entry is retained as long after its last success as the effect entry (H16). Locked in key order. Each
-- row exists, so each insert is an update: found by its key, where the join of an update could scan the whole ledger.
insert into todoku_ledger
select l.* from (
    select distinct scope, key_hash from json_to_recordset(:entries::json) as s(scope text, key_hash text)
     order by scope, key_hash) s
 cross join lateral (select * from todoku_ledger
                      where scope = s.scope and key_hash = s.key_hash limit 1 for update) l
    on conflict (scope, key_hash) do update set expires_at = todoku_now() + make_interval(secs => :ttl)

-- name: settle_done
-- Fenced by (id, epoch, worker) and nothing else: a `status` term makes the planner take the wrong index. The delete
-- is the lock: it follows the primary key by id, so rows are locked in order, and checks rows it waited for again. Ids
-- are sorted and unique, so the epoch of an id has the same place in its array. A timed token is the epoch and, in its
-- lower 31 bits, the milliseconds of the run (all set: unknown). Returns the tokens the worker does not own.
with token as materialized (
    select array(select unnest((:tokens::bigint[])[1:1])) as ids,
           array(select unnest((:tokens::bigint[])[2:2])) as timed
), gone as (
    delete from todoku_delivery
     where id = any ((select ids from token)::bigint[]) and worker_id = :worker
       and epoch = ((select timed from token)::bigint[])[width_bucket(id, (select ids from token))] >> 31
    returning id, epoch, message_seq, destination, queue, attempts, replay_count
), done as (
    insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                                replay_count, worker_id, run_ms)
    select todoku_now(), id, epoch, message_seq, destination, queue, attempts, replay_count, :worker,
           nullif(((select timed from token)::bigint[])[width_bucket(id, (select ids from token))] & 2147483647,
                  2147483647)
      from gone
)
select id from unnest((select ids from token)) as s(id)
 where (select count(*) from gone) < :number and id <> all (array(select id from gone))

-- name: settle_listed
-- Fenced: the list of the claim is there, and its worker's, and the delivery is as it was when it was listed (epoch 0,
-- without an owner): nobody has written it out, freed or cancelled it. Rows are locked in the order of their ids, as in
-- settle_done. `over`: lists of this worker of which everything has ended. Returns the ids that were not there like this.
with owned as materialized (
    select id from todoku_claim_list where worker_id = :worker and id = any (:lists::bigint[])
), gone as (
    delete from todoku_delivery
     where id = any (:ids::bigint[]) and epoch = 0 and worker_id is null
       and (:lists::bigint[])[width_bucket(id, :ids::bigint[])] = any (array(select id from owned))
    returning id, epoch, message_seq, destination, queue, attempts, replay_count
), ended as (
    delete from todoku_claim_list where id = any (:over::bigint[]) and worker_id = :worker
), done as (
    insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                                replay_count, worker_id, run_ms)
    select todoku_now(), id, epoch, message_seq, destination, queue, attempts + 1, replay_count, :worker,
           nullif((:times::bigint[])[width_bucket(id, :ids::bigint[])], 2147483647)
      from gone
)
select id from unnest(:ids::bigint[]) as s(id)
 where (select count(*) from gone) < :number and id <> all (array(select id from gone))

-- name: settle_rest
-- Fenced as settle_done. The failed attempt is written with its epoch in the same statement (H4), and with the
-- max_attempts the worker used. A run that parks has not killed its worker: it is no suspect any more. Returns the tokens the worker does not own, and the rows that would be retried but
-- were cancelled meanwhile.
with held as materialized (
    select s.*, d.attempts, d.replay_count, d.claimed_at, d.cancel_requested, d.message_seq
      from json_to_recordset(:rows::json)
           as s(id bigint, epoch bigint, status text, delay float8, reason text, error text, snoozed int,
                given_back int, parked int, max_attempts int, response json, traceback text, fingerprint text, run_ms int)
     cross join lateral (
        select attempts, replay_count, claimed_at, cancel_requested, message_seq from todoku_delivery
         where id = s.id and epoch = s.epoch and worker_id = :worker limit 1 for update) d
), changed as (
    update todoku_delivery d
       set status = case when d.cancel_requested then 'aborted' else held.status end,
           reason = case when d.cancel_requested and held.status <> 'aborted' then 'CANCELLED' else held.reason end,
           error = case when d.cancel_requested and held.status <> 'aborted' then {cancelled} else held.error end,
           fingerprint = case when d.cancel_requested and held.status <> 'aborted' then null else held.fingerprint end,
           epoch = d.epoch + 1, worker_id = null, cancel_requested = false, updated_at = todoku_now(),
           attempts = d.attempts - held.given_back, snoozes = d.snoozes + held.snoozed,
           max_attempts = held.max_attempts, lost = case held.parked when 1 then 0 else d.lost end,
           next_run_at = todoku_now() + make_interval(secs => held.delay)
      from held where d.id = any (array(select id from held)) and d.id = held.id
), attempt as (
    insert into todoku_attempt (delivery_id, replay, number, epoch, started_at, ended_at, reason, error, worker_id,
                                response_status, response, message_seq, traceback, fingerprint, run_ms, final)
    select id, replay_count, attempts, epoch, claimed_at, todoku_now(), reason, error, :worker,
           (response ->> 'status')::int, response, message_seq, traceback, fingerprint, run_ms,
           cancel_requested or status = 'aborted'
      from held where status <> 'pending'
)
select s.id, false from json_to_recordset(:rows::json) as s(id bigint) where s.id <> all (array(select id from held))
union all
select id, true from held where cancel_requested and status <> 'aborted'

-- name: cancelled
-- A fragment: a cancellation stays valid if the owner did not see it, or died before it could obey (H22).
'cancelled while it ran'

-- name: settle_results
-- The delivery was settled by this worker in this transaction.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select delivery_id, message_seq, result::json, todoku_now()
  from json_to_recordset(:rows::json) as s(delivery_id bigint, message_seq bigint, result text)
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: settled_before
-- Only reads: which tokens this worker already settled, when the reply to its commit was lost (H4).
select h.delivery_id, h.epoch from unnest(:ids::bigint[], :message_seqs::bigint[]) as s(id, message_seq)
 cross join lateral (select delivery_id, epoch from todoku_history
                      where message_seq = s.message_seq and delivery_id = s.id and worker_id = :worker offset 0) h
union all
select a.delivery_id, a.epoch from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select delivery_id, epoch from todoku_attempt
                      where delivery_id = s.id and worker_id = :worker offset 0) a

-- name: release
-- Fenced; the attempt never started, so it is not counted (I4). A token works once: a repetition changes nothing.
with held as materialized (
    select d.id from unnest(array(select unnest((:tokens::bigint[])[1:1])),
                            array(select unnest((:tokens::bigint[])[2:2]))) as s(id, epoch)
     cross join lateral (
        select id from todoku_delivery
         where id = s.id and epoch = s.epoch and worker_id = :worker limit 1 for update) d
)
update todoku_delivery d
   set status = case when cancel_requested then 'aborted' else 'pending' end,
       reason = case when cancel_requested then 'CANCELLED' else d.reason end,
       error = case when cancel_requested then {cancelled} else d.error end,
       fingerprint = case when cancel_requested then null else d.fingerprint end,
       epoch = d.epoch + 1, worker_id = null, attempts = d.attempts - 1,
       cancel_requested = false, updated_at = todoku_now(),
       next_run_at = case when :delay > 0 then todoku_now() + make_interval(secs => :delay) else d.next_run_at end
 where d.id = any (array(select id from held))
returning d.id, d.status
