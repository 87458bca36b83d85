-- Leases of workers.

-- name: register
-- The id is random per incarnation: it cannot meet an older one (H5).
insert into todoku_worker (id, name, started_at, expires_at, slots, version, drain_requested, state, lists)
values (:worker, :name, todoku_now(), todoku_now() + make_interval(secs => :lease), :slots, :version, :drained,
        case when :drained then 'draining' else 'running' end, true)

-- name: renew
-- An ended lease is never renewed (H1): 0 rows means that every held delivery is lost. The state is not written: the
-- claimer writes it, and a heartbeat with an older value would undo "idle", so publishers would not notify.
update todoku_worker set expires_at = todoku_now() + make_interval(secs => :lease)
 where id = :worker and expires_at > todoku_now()
returning id

-- name: set_state
-- Records the state of a live worker; its lease is not touched, so an ended lease stays ended (H1). A worker that was
-- asked to drain is draining, whatever its claimer wrote before it knew: publishers do not wake it.
update todoku_worker set state = case when drain_requested then 'draining' else :state end
 where id = :worker and expires_at > todoku_now()

-- name: owned
-- Reads the small index of rows in flight.
select id, epoch, cancel_requested, lane, gate from todoku_delivery where worker_id = :worker and status = 'sending'

-- name: end_expired_leases
-- The row lock decides against a renewal (H1). The row of a worker that is stopped in the middle of a renewal or a
-- claim is locked: it is skipped and ended in a later round, so that no process waits for a dead worker.
delete from todoku_worker
 where id = any (array(select id from todoku_worker where expires_at <= todoku_now() for update skip locked))
returning id

-- name: end_lease
-- Ends one lease at once: the last act of a drain, or of a supervisor whose child died.
delete from todoku_worker where id = :worker returning id

-- name: lock_owned
-- Waits: a claim that saw these rows free may hold locks on them, and free_orphans skips locked rows.
select from todoku_delivery where worker_id = :worker and status = 'sending' for update

-- name: lock_listed
-- As lock_owned, for write_out_lists: a claim that was made to look again holds locks on listed rows for a moment.
select from todoku_delivery
 where id = any (array(select unnest(ids) from todoku_claim_list where worker_id = :worker)) and epoch = 0
 order by id for update

-- name: has_lists
-- Only reads a small table. Lists that are so old are written out, so that what people see is no older.
select exists (select from todoku_claim_list
                where worker_id = :worker and claimed_at <= todoku_now() - make_interval(secs => :age))

-- name: lock_owned_lanes
-- As lock_owned, for free_lanes.
select from todoku_lane where worker_id = :worker for update

-- name: free_orphans
-- An anti-join: rows whose owner has no worker row at all are found, too (H2). A row at its limit, or cancelled, is
-- aborted only if the ledger has no success (H13). The attempt is not counted; the loss is counted separately (H6).
-- Unordered: it never waits for a lock, and an order would make the planner scan the whole table by id. Locked only if
-- the epoch is still the one seen: meanwhile the row may have been freed and claimed by a live worker (H7).
with orphan as materialized (
    select d.id, d.epoch, d.cancel_requested as asked,
           (d.cancel_requested or d.lost + :lost >= :max_lost) and not exists (
               select from todoku_message m join todoku_ledger l
                   on l.scope = 'effect:' || d.destination and l.key_hash = m.key_hash
                where m.seq = d.message_seq and l.state = 'succeeded' and l.digest = m.digest) as doomed
      from todoku_delivery d
     where d.status = 'sending' and not exists (select from todoku_worker w where w.id = d.worker_id)
       and (:worker::uuid is null or d.worker_id = :worker::uuid)
     limit :most
), held as materialized (
    select d.id, o.asked, o.doomed from orphan o cross join lateral (
        select id from todoku_delivery where id = o.id and epoch = o.epoch limit 1 for update skip locked) d
)
update todoku_delivery d
   set status = case when doomed or (d.cancel_requested and not asked) then 'aborted' else 'pending' end,
       reason = case when d.cancel_requested and (doomed or not asked) then 'CANCELLED'
                     when doomed then 'WORKER_LOST' end,
       error = case when d.cancel_requested and (doomed or not asked) then {cancelled}
                    when doomed then 'its worker died ' || d.lost + :lost || ' times' end,
       epoch = d.epoch + 1, worker_id = null, attempts = greatest(d.attempts - 1, 0), lost = d.lost + :lost,
       fingerprint = null, cancel_requested = false, next_run_at = todoku_now(), updated_at = todoku_now()
  from held
 where d.id = any (array(select id from held)) and d.id = held.id
returning d.id, d.status, d.epoch - 1, d.attempts + 1, d.replay_count,
          case when d.reason = 'CANCELLED' then null else d.lane end, d.gate

-- name: record_lost
-- Append-only; one row for each owner that died during a delivery.
insert into todoku_attempt (delivery_id, replay, number, epoch, ended_at, reason, error, message_seq)
select delivery_id, replay, number, epoch, todoku_now(), 'WORKER_LOST', 'its worker died',
       (select d.message_seq from todoku_delivery d where d.id = s.delivery_id)
  from json_to_recordset(:rows::json) as s(delivery_id bigint, replay int, number int, epoch bigint)

-- name: free_lanes
-- As free_orphans, for lanes. `failures` makes the next claim take one row only: its head is a suspect.
with orphan as materialized (
    select l.id, l.epoch from todoku_lane l
     where l.worker_id is not null and not exists (select from todoku_worker w where w.id = l.worker_id)
       and (:worker::uuid is null or l.worker_id = :worker::uuid)
), held as materialized (
    select l.id from orphan o cross join lateral (
        select id from todoku_lane where id = o.id and epoch = o.epoch limit 1 for update skip locked) l
)
update todoku_lane
   set worker_id = null, epoch = epoch + 1, failures = failures + :lost, ready_at = todoku_now()
 where id = any (array(select id from held))

-- name: park_lanes
-- Their heads became dead letters in this transaction, under their row locks.
update todoku_lane l set parked = true
 where l.id = any (:lanes::bigint[])
   and not {skips}

-- name: workers
-- Only reads; the deliveries each holds are counted in the small index of rows in flight.
select id, name, state, date_part('epoch', started_at), date_part('epoch', expires_at),
       (select count(*) from todoku_delivery d where d.status = 'sending' and d.worker_id = w.id),
       slots, version, drain_requested
  from todoku_worker w order by started_at, id

-- name: held_by
-- Only reads: of each worker the deliveries it has held longest, by the small index of rows in flight.
select h.worker_id, h.id, m.id, m.topic, h.destination, h.queue, h.attempts, h.max_attempts, date_part('epoch', h.claimed_at)
  from (select d.*, row_number() over (partition by d.worker_id order by d.claimed_at, d.id) as place
          from todoku_delivery d
         where d.status = 'sending' and d.worker_id = any (:workers::text[]::uuid[])) h
  join todoku_message m on m.seq = h.message_seq
 where h.place <= :most
 order by h.worker_id, h.place

-- name: request_drain
-- One row of a live worker, whose heartbeat reads it with the limits. 0 rows: its lease has ended. No delivery is
-- touched: the worker gives back what has not started, under its own fence, and lets the rest end.
update todoku_worker set drain_requested = :drain, state = case when :drain then 'draining' else 'running' end
 where id = :worker and expires_at > todoku_now()
returning id

-- name: request_stacks
-- One row of a live worker. The number names this request: the answer to an older one is not taken for its answer.
update todoku_worker set stack_request = stack_request + 1 where id = :worker and expires_at > todoku_now()
returning stack_request

-- name: answer_stacks
-- Written by the worker itself into its own row; no row is written once its lease has ended.
update todoku_worker set stacks = :stacks, stacks_answer = :request, stacks_at = todoku_now()
 where id = :worker and expires_at > todoku_now()

-- name: clear_stacks
-- Written by the worker itself, a minute after its answer. An answer to a newer request stays.
update todoku_worker set stacks = null, stacks_answer = null, stacks_at = null
 where id = :worker and stacks_answer = :request

-- name: stacks
-- Only reads. An answer older than a minute is not returned, also when its worker could not clear it.
select stack_request, case when stacks_at > todoku_now() - interval '1 minute' then stacks_answer end,
       case when stacks_at > todoku_now() - interval '1 minute' then stacks end, date_part('epoch', stacks_at)
  from todoku_worker where id = :worker and expires_at > todoku_now()
