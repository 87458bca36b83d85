-- Leases of workers.

-- name: register
-- The id is random per incarnation: it cannot meet an older one (H5).
insert into todoku_worker (id, name, started_at, expires_at, slots, version, drain_requested, state)
values (:worker, :name, :now, :now + cast(:lease * 1000000 as integer), :slots, :version, :drained,
        case when :drained then 'draining' else 'running' end)

-- name: renew
-- An ended lease is never renewed (H1): 0 rows means that every held delivery is lost. The state is not written: the
-- claimer writes it, and a heartbeat with an older value would undo "idle", so publishers would not notify.
update todoku_worker set expires_at = :now + cast(:lease * 1000000 as integer)
 where id = :worker and expires_at > :now
returning id

-- name: set_state
-- Records the state of a live worker; its lease is not touched, so an ended lease stays ended (H1). A worker that was
-- asked to drain is draining, whatever its claimer wrote before it knew: publishers do not wake it.
update todoku_worker set state = case when drain_requested then 'draining' else :state end
 where id = :worker and expires_at > :now

-- name: owned
-- Reads the small index of rows in flight.
select id, epoch, cancel_requested, lane, gate from todoku_delivery where worker_id = :worker and status = 'sending'

-- name: end_expired_leases
-- Renewals and claims are other transactions of the one writer: they run before or after, never between.
delete from todoku_worker where expires_at <= :now returning id

-- name: end_lease
-- Ends one lease at once: the last act of a drain, or of a supervisor whose child died.
delete from todoku_worker where id = :worker returning id

-- name: lock_owned
-- No lock to wait for: there is one writer.
select 0

-- name: lock_owned_lanes
-- No lock to wait for: there is one writer.
select 0

-- name: free_orphans
-- As PostgreSQL: an anti-join (H2), the ledger is read before an abort (H13), the attempt is not counted (H6).
select d.id, case when {doomed} then 'aborted' else 'pending' end, d.epoch, d.attempts, d.replay_count,
       case when d.cancel_requested then null else d.lane end, d.gate
  from todoku_delivery d indexed by todoku_delivery_owner where {orphan} order by d.id limit :most;
update todoku_delivery as d
   set status = case when {doomed} then 'aborted' else 'pending' end,
       reason = case when not {doomed} then null when d.cancel_requested then 'CANCELLED' else 'WORKER_LOST' end,
       error = case when not {doomed} then null when d.cancel_requested then {cancelled}
                    else 'its worker died ' || (d.lost + :lost) || ' times' end,
       epoch = epoch + 1, worker_id = null, attempts = max(attempts - 1, 0), lost = lost + :lost,
       fingerprint = null, cancel_requested = 0, next_run_at = :now, updated_at = :now
 where d.id in (select d.id from todoku_delivery d indexed by todoku_delivery_owner
                 where {orphan} order by d.id limit :most)

-- name: orphan
-- A fragment: in flight, and no live owner; of one worker, or of any.
d.status = 'sending' and not exists (select 1 from todoku_worker w where w.id = d.worker_id)
   and (:worker is null or d.worker_id = :worker)

-- name: doomed
-- A fragment: cancelled, or lost for the last allowed time, and the ledger has no success.
((d.cancel_requested or d.lost + :lost >= :max_lost) and not exists (
    select 1 from todoku_message m join todoku_ledger l
        on l.scope = 'effect:' || d.destination and l.key_hash = m.key_hash
     where m.seq = d.message_seq and l.state = 'succeeded' and l.digest = m.digest))

-- name: record_lost
-- Append-only; one row for each owner that died during a delivery.
insert into todoku_attempt (delivery_id, replay, number, epoch, ended_at, reason, error, message_seq)
select json_extract(value, '$.delivery_id'), json_extract(value, '$.replay'), json_extract(value, '$.number'),
       json_extract(value, '$.epoch'), :now, 'WORKER_LOST', 'its worker died',
       (select d.message_seq from todoku_delivery d where d.id = json_extract(value, '$.delivery_id'))
  from json_each(:rows)

-- name: free_lanes
-- As free_orphans, for lanes. `failures` makes the next claim take one row only: its head is a suspect.
update todoku_lane
   set worker_id = null, epoch = epoch + 1, failures = failures + :lost, ready_at = :now
 where worker_id is not null and worker_id not in (select id from todoku_worker)
   and (:worker is null or worker_id = :worker)

-- name: park_lanes
-- Their heads became dead letters in this transaction.
update todoku_lane as l set parked = 1
 where l.id in (select value from json_each(:lanes)) and not {skips}

-- name: workers
-- Only reads; the deliveries each holds are counted in the small index of rows in flight.
select id, name, state, started_at / 1e6, expires_at / 1e6,
       (select count(*) from todoku_delivery d where d.status = 'sending' and d.worker_id = w.id),
       slots, version, drain_requested
  from todoku_worker w order by started_at, id

-- name: held_by
-- Only reads: of each worker the deliveries it has held longest, by the small index of rows in flight.
select h.worker_id, h.id, m.id, m.topic, h.destination, h.queue, h.attempts, h.max_attempts, h.claimed_at / 1e6
  from (select d.*, row_number() over (partition by d.worker_id order by d.claimed_at, d.id) as place
          from todoku_delivery d indexed by todoku_delivery_owner
         where d.status = 'sending' and d.worker_id in (select value from json_each(:workers))) h
  join todoku_message m on m.seq = h.message_seq
 where h.place <= :most
 order by h.worker_id, h.place

-- name: request_drain
-- One row of a live worker, whose heartbeat reads it with the limits. 0 rows: its lease has ended. No delivery is
-- touched: the worker gives back what has not started, under its own fence, and lets the rest end.
update todoku_worker set drain_requested = :drain, state = case when :drain then 'draining' else 'running' end
 where id = :worker and expires_at > :now
returning id

-- name: request_stacks
-- One row of a live worker. The number names this request: the answer to an older one is not taken for its answer.
update todoku_worker set stack_request = stack_request + 1 where id = :worker and expires_at > :now
returning stack_request

-- name: answer_stacks
-- Written by the worker itself into its own row; no row is written once its lease has ended.
update todoku_worker set stacks = :stacks, stacks_answer = :request, stacks_at = :now
 where id = :worker and expires_at > :now

-- name: clear_stacks
-- Written by the worker itself, a minute after its answer. An answer to a newer request stays.
update todoku_worker set stacks = null, stacks_answer = null, stacks_at = null
 where id = :worker and stacks_answer = :request

-- name: stacks
-- Only reads. An answer older than a minute is not returned, also when its worker could not clear it.
select stack_request, case when stacks_at > :now - 60000000 then stacks_answer end,
       case when stacks_at > :now - 60000000 then stacks end, stacks_at / 1e6
  from todoku_worker where id = :worker and expires_at > :now

-- name: write_out_lists
-- Changes nothing: a claim on SQLite is never a list.
select id from todoku_worker where false and id = :worker and expires_at = :age

-- name: lock_listed
-- Changes nothing, as write_out_lists.
select id from todoku_worker where false and id = :worker

-- name: has_lists
-- Only reads: there are none, as in write_out_lists.
select 0 where :worker is not null and :age is not null
