-- The queries of the store on SQLite. `:name` is bound; lists and documents are JSON text; `:now` is microseconds.
-- A block may be several statements, of which one returns rows. All of them run in one BEGIN IMMEDIATE: there is
-- one writer, so whatever a statement saw still holds for the next one. "As PostgreSQL" means: the same contract.

------------------------------------------------------------------------------------------------ publish

-- name: publish_reserve
-- The unique key decides; whoever comes second inserts nothing.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at)
values (:scope, :key_hash, :digest, 'accepted', :id, :now, :now)
    on conflict (scope, key_hash) do nothing

-- name: publish_reserve_for
-- As publish_reserve, but an entry whose time is over is taken over: its key is free again.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at, expires_at)
values (:scope, :key_hash, :digest, 'accepted', :id, :now, :now, :now + cast(:lasts * 1000000 as integer))
    on conflict (scope, key_hash) do update
       set digest = excluded.digest, message_id = excluded.message_id, created_at = excluded.created_at,
           updated_at = excluded.updated_at, expires_at = excluded.expires_at, state = excluded.state,
           http_status = null, response = null
     where todoku_ledger.expires_at <= excluded.created_at

-- name: publish_reserved
-- This transaction holds the write lock: the entries cannot change any more. All of them come as one text: for each
-- row that sqlite3 fetches the interpreter's lock goes to and fro, which beside a busy event loop takes 100 µs. Times
-- in microseconds: of a fraction this JSON keeps fifteen digits.
select json_group_array(json_array(l.scope, l.key_hash, l.digest, l.message_id,
                                   coalesce(m.created_at, l.created_at), m.payload))
  from json_each(:entries) e
 cross join todoku_ledger l
    on l.scope = json_extract(e.value, '$.scope') and l.key_hash = json_extract(e.value, '$.key_hash')
  left join todoku_message m on m.id = l.message_id

-- name: publish_unreserve
-- Only what this very publish reserved: the message id is its own.
delete from todoku_ledger where scope = :scope and key_hash = :key_hash and message_id = :id

-- name: publish_message
-- Its deliveries follow in the same transaction (I1).
insert into todoku_message (id, topic, type, key, payload, payload_bytes, content_type, headers, labels,
                            scope, key_hash, digest, created_at)
values (:id, :topic, :type, :key, :payload, :payload_bytes, :content_type, :headers, :labels,
        :scope, :key_hash, :digest, :now)

-- name: publish_lane
-- The single writer orders commits, so ids of a lane follow commit order without a lock (I10).
insert into todoku_lane (id, queue, destination, ready_at) values (:lane, :queue, :destination, :now)
    on conflict (id) do nothing

-- name: publish_gate_calls
-- Only appends, as PostgreSQL. Who claims heeds it.
insert into todoku_gate_call (queue, destination, gate, key) values (:queue, :destination, :gate, :key)

-- name: publish_delivery
-- The message is in this transaction.
insert into todoku_delivery (message_seq, destination, queue, lane, gate, priority, status, max_attempts, timeout,
                             next_run_at, expires_at, updated_at, reason)
values ((select seq from todoku_message where id = :id), :destination, :queue, :lane, :gate, :priority,
        case when :dead is null then 'pending' else 'aborted' end, :max_attempts, :timeout, :next_run_at,
        coalesce(:expires_at, 9223372036854775807), :now, :dead)

-- name: publish_audit_reopen
-- Before the reopening it tells of, in the same transaction.
insert into todoku_audit (at, by, action, target, why)
select :now, 'publisher', 'replay', 'delivery:' || d.id, 'published again with the same key'
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.status = 'aborted'

-- name: publish_reopen_ledger
-- What is running again is not failed any more (H15).
update todoku_ledger set state = 'accepted', updated_at = :now, expires_at = 9223372036854775807
 where state = 'failed' and (scope, key_hash, digest) in (
    select 'effect:' || d.destination, m.key_hash, m.digest from todoku_message m
      join todoku_delivery d on d.message_seq = m.seq where m.id = :message_id and d.status = 'aborted')

-- name: publish_reopen_lanes
-- A reopened row has the lowest id of its lane, so it is the head again.
insert into todoku_lane (id, queue, destination, ready_at)
select distinct d.lane, d.queue, d.destination, :now from todoku_message m
  join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.status = 'aborted' and d.lane is not null
    on conflict (id) do update set parked = 0, ready_at = excluded.ready_at

-- name: publish_reopen_gates
-- Before the reopening, in its transaction: whoever heeds the call sees the row waiting.
insert into todoku_gate_call (queue, destination, gate, key)
select d.queue, d.destination, d.gate, m.key from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.status = 'aborted' and d.gate is not null

-- name: publish_reopen
-- Only what is `aborted` changes, under the write lock: of two publishers one reopens (H15).
update todoku_delivery
   set status = 'pending', epoch = epoch + 1, attempts = 0, lost = min(lost, 1), snoozes = 0,
       replay_count = replay_count + 1, reason = null, error = null, cancel_requested = 0,
       next_run_at = :now, expires_at = 9223372036854775807, updated_at = :now
 where status = 'aborted' and message_seq = (select seq from todoku_message where id = :message_id)

-- name: once_found
-- This transaction holds the write lock: the entry cannot change any more.
select digest, state, message_id, http_status, response, created_at / 1e6
  from todoku_ledger where scope = :scope and key_hash = :key_hash

-- name: once_record
-- Only by whoever reserved the key: the token is his own.
update todoku_ledger
   set state = :state, http_status = :status, response = :response, updated_at = :now,
       expires_at = :now + cast(:lasts * 1000000 as integer)
 where scope = :scope and key_hash = :key_hash and message_id = :token
returning 1

-- name: once_conclude
-- Only what waits for its end: what has succeeded or failed stays as it is, and of two that tell, one does.
update todoku_ledger
   set state = :state, http_status = :status, response = :response, updated_at = :now,
       expires_at = :now + cast(:lasts * 1000000 as integer)
 where scope = :scope and key_hash = :key_hash and state = 'accepted'
returning 1

-- name: inbox_once
-- The primary key decides; there is one writer at a time.
insert into todoku_inbox (consumer, message_id, seen_at) values (:consumer, :message_id, :now)
    on conflict do nothing
returning 1

-- name: inbox_newer
-- There is one writer at a time; each compares with what the one before it has left.
insert into todoku_inbox_sequence (consumer, key, sequence, seen_at) values (:consumer, :key, :sequence, :now)
    on conflict (consumer, key) do update set sequence = excluded.sequence, seen_at = excluded.seen_at
 where todoku_inbox_sequence.sequence < excluded.sequence
returning 1

-- name: savepoint_open
-- Changes nothing. A driver that opens a transaction before the first change has opened it after this: a savepoint
-- outside of one would be a transaction of its own, and its release a commit.
delete from todoku_count where false

-- name: savepoint
-- Only this name is undone or closed, so it may be nested in the caller's own.
savepoint todoku_best_effort

-- name: savepoint_undo
-- Undoes what todoku did since, and nothing of the caller's.
rollback to savepoint todoku_best_effort

-- name: savepoint_close
-- The caller's transaction goes on; nothing is committed by this.
release savepoint todoku_best_effort

-------------------------------------------------------------------------------------------- the lease

-- name: register
-- The id is random per incarnation: it cannot meet an older one (H5).
insert into todoku_worker (id, name, started_at, expires_at)
values (:worker, :name, :now, :now + cast(:lease * 1000000 as integer))

-- name: renew
-- A lease that ended is never renewed (H1): 0 rows means everything held is lost. The state is left alone: the claimer
-- writes it, and a heartbeat that wrote what it had read before would undo "idle", so publishers would give no notice.
update todoku_worker set expires_at = :now + cast(:lease * 1000000 as integer)
 where id = :worker and expires_at > :now
returning id

-- name: set_state
-- Says what a live worker does; its lease is not touched, so a lease that ended stays ended (H1).
update todoku_worker set state = :state where id = :worker and expires_at > :now

-- name: owned
-- Reads the small index of rows in flight.
select id, epoch, cancel_requested, lane, gate from todoku_delivery where worker_id = :worker and status = 'sending'

-- name: bury_expired
-- Renewals and claims are other transactions of the one writer: before or after, never between.
delete from todoku_worker where expires_at <= :now returning id

-- name: bury
-- Ends one lease at once: the last act of a drain, or of a supervisor whose child died.
delete from todoku_worker where id = :worker returning id

-- name: lock_owned
-- No lock to wait for: there is one writer.
select 0

-- name: lock_owned_lanes
-- No lock to wait for: there is one writer.
select 0

-- name: free_orphans
-- As PostgreSQL: an anti-join (H2), the ledger asked before giving up (H13), the attempt given back (H6).
select d.id, case when {doomed} then 'aborted' else 'pending' end, d.epoch, d.attempts, d.replay_count,
       case when d.cancel_requested then null else d.lane end, d.gate
  from todoku_delivery d indexed by todoku_delivery_owner where {orphan} order by d.id limit :most;
update todoku_delivery as d
   set status = case when {doomed} then 'aborted' else 'pending' end,
       reason = case when not {doomed} then null when d.cancel_requested then 'CANCELLED' else 'WORKER_LOST' end,
       error = case when not {doomed} then null when d.cancel_requested then {cancelled}
                    else 'its worker died ' || (d.lost + :lost) || ' times' end,
       epoch = epoch + 1, worker_id = null, attempts = max(attempts - 1, 0), lost = lost + :lost,
       cancel_requested = 0, next_run_at = :now, updated_at = :now
 where d.id in (select d.id from todoku_delivery d indexed by todoku_delivery_owner
                 where {orphan} order by d.id limit :most)

-- name: orphan
-- A fragment: in flight, and no live owner; of one worker, or of any.
d.status = 'sending' and not exists (select 1 from todoku_worker w where w.id = d.worker_id)
   and (:worker is null or d.worker_id = :worker)

-- name: doomed
-- A fragment: cancelled or lost for the last time, and the ledger does not know of a success.
((d.cancel_requested or d.lost + :lost >= :max_lost) and not exists (
    select 1 from todoku_message m join todoku_ledger l
        on l.scope = 'effect:' || d.destination and l.key_hash = m.key_hash
     where m.seq = d.message_seq and l.state = 'succeeded' and l.digest = m.digest))

-- name: record_lost
-- Append-only; one row per owner that died under a delivery.
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

-- name: skips
-- A fragment: dead letters do not block the lane: its destination says so, or is a host, where a queue always goes on.
(instr(l.destination, '://') > 0
    or exists (select 1 from todoku_destination b where b.name = l.destination and b.on_abort = 'skip'))

------------------------------------------------------------------------------------------- the line

-- name: served
-- A fragment: somebody who serves these destinations (null: all) serves this one; a scheme stands for every host.
(:destinations is null or destination in (select value from json_each(:destinations))
    or substr(destination, 1, instr(destination || '://', '://') + 2) in (select value from json_each(:destinations)))

-- name: waiting
-- Only reads. Hops from one (queue, destination, priority) to the next in the index, however many rows each has: to
-- SQLite `>` on a row value begins at `=`, so the hop goes to the end of time; `+` keeps a type from hiding the index.
with recursive groups(queue, destination, priority) as (
    select * from (select queue, destination, priority from todoku_delivery indexed by todoku_delivery_due
      where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
      order by queue, destination, priority limit 1)
    union all
    select d.queue, d.destination, d.priority from groups g join todoku_delivery d
        on d.id = (select id from todoku_delivery n indexed by todoku_delivery_due
                    where n.status in ('pending', 'failed') and n.lane is null and n.lost = 0 and n.gate is null
                      and (n.queue, n.destination, n.priority, n.next_run_at)
                          > (+g.queue, +g.destination, +g.priority, 9223372036854775807)
                    order by n.queue, n.destination, n.priority limit 1)
)
select queue, destination, priority from groups
 where {served}

-- name: waiting_suspects
-- Only reads. Suspects are few: each had an owner that died.
select distinct queue, destination from todoku_delivery
 where status in ('pending', 'failed') and lane is null and lost > 0
   and {served}

-- name: waiting_lanes
-- Only reads; as `waiting`, over lanes.
with recursive groups(queue, destination) as (
    select * from (select queue, destination from todoku_lane indexed by todoku_lane_due
      where worker_id is null and parked = 0 order by queue, destination limit 1)
    union all
    select l.queue, l.destination from groups g join todoku_lane l
        on l.id = (select id from todoku_lane n indexed by todoku_lane_due
                    where n.worker_id is null and n.parked = 0
                      and (n.queue, n.destination, n.ready_at) > (+g.queue, +g.destination, 9223372036854775807)
                    order by n.queue, n.destination limit 1)
)
select queue, destination from groups
 where {served}

-- name: waiting_gates
-- Only reads; as `waiting`, over gates that are not full and over calls nobody has heeded yet. With the seconds until
-- the first gate of each place is to be looked at.
with recursive groups(queue, destination, ready_at) as (
    select * from (select queue, destination, ready_at from todoku_gate indexed by todoku_gate_due
      where {able} order by queue, destination, ready_at limit 1)
    union all
    select l.queue, l.destination, l.ready_at from groups g join todoku_gate l
        on l.id = (select id from todoku_gate n indexed by todoku_gate_due
                    where {able}
                      and (n.queue, n.destination, n.ready_at) > (+g.queue, +g.destination, 9223372036854775807)
                    order by n.queue, n.destination, n.ready_at limit 1)
), called(queue, destination) as (
    select * from (select queue, destination from todoku_gate_call indexed by todoku_gate_call_place
      order by queue, destination limit 1)
    union all
    select l.queue, l.destination from called g join todoku_gate_call l
        on l.id = (select id from todoku_gate_call n indexed by todoku_gate_call_place
                    where (n.queue, n.destination, n.id) > (+g.queue, +g.destination, 9223372036854775807)
                    order by n.queue, n.destination limit 1)
)
select queue, destination, (ready_at - :now) / 1e6 from groups
 where {served}
union all
select queue, destination, 0.0 from called
 where {served}

-- name: live
-- A fragment: the worker's lease has not ended (H2).
exists (select 1 from todoku_worker w where w.id = :worker and w.expires_at > :now)

-- name: due
-- A fragment: the due rows of one slice, in order. The index is named: no statistics can talk SQLite out of it. What
-- holds for the whole slice is asked before the search, not row by row: a million paused rows are not walked (H24).
 where t.queue = (select :queue where {live}
                     and not exists (select 1 from todoku_queue q where q.name = :queue and q.paused = 1)
                     and not exists (select 1 from todoku_destination b
                                      where b.name = :destination and b.open_until > :now))
   and t.destination = :destination and t.priority = :priority
   and t.status in ('pending', 'failed') and t.lane is null and t.lost = 0 and t.gate is null
   and t.next_run_at >= :after_at and t.next_run_at <= :now
   and (t.next_run_at > :after_at or t.id > :after_id) and t.expires_at > :now
 order by t.next_run_at, t.id limit :most

-- name: take
-- A fragment: what a claim does to its rows.
update todoku_delivery
   set status = 'sending', worker_id = :worker, claimed_at = :now, updated_at = :now,
       attempts = attempts + 1, epoch = epoch + 1

-- name: claim
-- Only reads; claim_taken takes what was read, and nobody else writes between the two. All rows come as one text: for
-- each row that sqlite3 fetches the interpreter's lock goes to and fro, which beside a busy event loop takes 100 µs.
select '[' || coalesce(group_concat(row), '') || ']' from (
    select {packed} as row from todoku_delivery t indexed by todoku_delivery_due {claimed_from} {due})

-- name: claim_taken
-- Rows of all slices at once, read in this transaction by a worker that lives.
{take} where id in (select value from json_each(:ids))

-- name: packed
-- A fragment: what `claimed` returns as a JSON array, times in microseconds, bytes as hexadecimal digits. What is large
-- is left out, and says so at the end: no text may grow without bound.
json_array(t.id, t.epoch + 1, t.message_seq, m.id, m.topic, m.key,
           case when {small} then m.payload end,
           case when {small} and m.payload_bytes is not null then hex(m.payload_bytes) end,
           m.content_type, case when {small} then m.headers end,
           t.destination, t.queue, t.priority, t.lane, t.gate, t.attempts + 1, t.max_attempts, t.lost, t.snoozes,
           t.replay_count, t.next_run_at, m.created_at,
           case when t.expires_at < 9223372036854775807 then t.expires_at end, t.timeout,
           m.key_hash, m.digest, e.state, e.digest, {small})

-- name: small
-- A fragment: the message is small enough to be packed.
coalesce(length(m.payload), 0) + coalesce(length(m.payload_bytes), 0) + coalesce(length(m.headers), 0) <= 16384

-- name: claim_large
-- Only reads, in the transaction of the claim: what was too large to be packed, by primary key.
select m.seq, m.payload, m.payload_bytes, m.headers from todoku_message m
 where m.seq in (select value from json_each(:seqs))

-- name: claimed
-- A fragment: what every claim returns, as it will be once taken.
select t.id, t.epoch + 1, t.message_seq, m.id, m.topic, m.key, m.payload, m.payload_bytes, m.content_type,
       m.headers, t.destination, t.queue, t.priority, t.lane, t.gate, t.attempts + 1, t.max_attempts, t.lost, t.snoozes,
       t.replay_count, t.next_run_at / 1e6, m.created_at / 1e6,
       case when t.expires_at < 9223372036854775807 then t.expires_at / 1e6 end, t.timeout,
       m.key_hash, m.digest, e.state, e.digest

-- name: claimed_from
-- A fragment: each taken row finds its message and effect entry by primary key.
  left join todoku_message m on m.seq = t.message_seq
  left join todoku_ledger e on e.scope = 'effect:' || t.destination and e.key_hash = m.key_hash

-- name: open
-- A fragment: the place is not paused and its breaker not open; asked once for each place.
not exists (select 1 from todoku_queue q where q.name = json_extract(p.value, '$.queue') and q.paused = 1)
   and not exists (select 1 from todoku_destination b
                    where b.name = json_extract(p.value, '$.destination') and b.open_until > :now)

-- name: suspect
-- A fragment: one due row whose owner died.
select d.id from json_each(:places) p cross join todoku_delivery d indexed by todoku_delivery_suspect
 where d.queue = json_extract(p.value, '$.queue') and d.destination = json_extract(p.value, '$.destination')
   and d.status in ('pending', 'failed') and d.lane is null and d.lost > 0
   and (d.gate is null or d.gate in (select value from json_each(:gates)))
   and d.next_run_at <= :now and d.expires_at > :now and {live}
   and {open}
 limit 1

-- name: claim_suspect
-- As claim, for one row: alone, so that if it kills this worker too it takes nobody along (H6).
{claimed} from todoku_delivery t {claimed_from} where t.id in ({suspect});
{take} where id in ({suspect})

-- name: due_lanes
-- A fragment: lanes of these places that may run.
select l.id from json_each(:places) p cross join todoku_lane l indexed by todoku_lane_due
 where l.queue = json_extract(p.value, '$.queue') and l.destination = json_extract(p.value, '$.destination')
   and l.worker_id is null and l.parked = 0 and l.ready_at <= :now and {live}
   and {open}
 limit :lanes

-- name: take_lanes
-- Reads and takes the same lanes: nobody else writes between the two statements.
select id, failures from todoku_lane where id in ({due_lanes});
update todoku_lane set worker_id = :worker, epoch = epoch + 1 where id in ({due_lanes})

-- name: lane_rows
-- A fragment: of each lane the first rows in id order, up to the first that may not run yet (I10).
select id, lost, next_run_at from (
    select d.id, d.next_run_at, row_number() over (partition by d.lane order by d.id) as place, s.value as most,
           max(d.lost) over (partition by d.lane order by d.id) as lost,
           min(d.status <> 'sending' and d.next_run_at <= :now and d.expires_at > :now)
               over (partition by d.lane order by d.id) as runs
      from json_each(:mosts) s cross join todoku_delivery d
        on d.id in (select n.id from todoku_delivery n indexed by todoku_delivery_lane
                     where n.lane = cast(s.key as integer) and n.lane is not null and n.status <> 'aborted'
                     order by n.id limit :most))
 where runs and place <= most and (place = 1 or lost = 0)

-- name: next_lane_rows
-- A fragment: of those, all but the ones whose owner died; or one such row alone, once it has waited longest (H6).
with next as materialized ({lane_rows})
select id from next
 where case when (select lost > 0 from next order by next_run_at, id limit 1)
            then id = (select id from next order by next_run_at, id limit 1) else lost = 0 end

-- name: claim_lane_rows
-- The lanes are ours. Reads and takes the same rows.
{claimed} from todoku_delivery t {claimed_from} where t.id in ({next_lane_rows}) order by t.lane, t.id;
{take} where id in ({next_lane_rows})

------------------------------------------------------------------------------------ limits and gates

-- name: rooms
-- Only reads: how many more the limits in force let start, by their rate and at once. What is in flight is counted in
-- its small index.
select 'queue', name, {allowed}, "limit" - (
           select count(*) from todoku_delivery d indexed by todoku_delivery_owner
            where d.status = 'sending' and d.queue = todoku_queue.name)
  from todoku_queue where name in (select value from json_each(:queues)) and {counts}
union all
select 'destination', name, {allowed}, "limit" - (
           select count(*) from todoku_delivery d indexed by todoku_delivery_owner
            where d.status = 'sending' and d.destination = todoku_destination.name)
  from todoku_destination where name in (select value from json_each(:destinations)) and {counts}

-- name: allowed
-- A fragment: how many a rate lets start now. What was not used is kept for a moment, so that a poll that comes late
-- loses nothing.
case when rate is null then null when tat > :now then 0
     else 1 + cast(min((:now - {credit}) / 1e6 * rate, 1e6) as integer) end

-- name: credit
-- A fragment: from when on starts that were not used are kept.
max(coalesce(tat, 0), :now - 100000)

-- name: lock_limits
-- No lock to take: there is one writer.
select 0

-- name: spend_rates
-- This transaction has claimed so many of each; nobody else writes meanwhile.
update todoku_queue as l set tat = {credit} + cast(s.value * 1000000 / l.rate as integer)
  from json_each(:queues) s where l.name = s.key and l.rate is not null;
update todoku_destination as l set tat = {credit} + cast(s.value * 1000000 / l.rate as integer)
  from json_each(:destinations) s where l.name = s.key and l.rate is not null

-- name: heeded
-- A fragment: the next calls of these places.
select c.id from json_each(:places) p cross join todoku_gate_call c indexed by todoku_gate_call_place
 where c.queue = json_extract(p.value, '$.queue') and c.destination = json_extract(p.value, '$.destination')
 limit :most

-- name: heed_calls
-- A call is committed with its delivery: whoever looks at the gate after this sees it.
select gate, queue, destination, key from todoku_gate_call
 where id in (select max(id) from todoku_gate_call where id in ({heeded}) group by gate) order by gate;
delete from todoku_gate_call where id in ({heeded})

-- name: open_gates
-- Those there are not are made; what is waiting is looked at next.
insert into todoku_gate (id, queue, destination, key, ready_at)
select json_extract(value, '$.gate'), json_extract(value, '$.queue'), json_extract(value, '$.destination'),
       json_extract(value, '$.key'), :now
  from json_each(:gates) where true
    on conflict (id) do update set queue = excluded.queue

-- name: lock_gates
-- No lock to take: there is one writer.
select id, ("limit" is null or running < "limit") and (rate is null or tat is null or tat <= :now)
  from todoku_gate where id in (select value from json_each(:gates)) order by id

-- name: priorities
-- A fragment: one probe of the index for each, so that what is due is found past any number that is not.
json_each('[15,14,13,12,11,10,9,8,7,6,5,4,3,2,1,0]')

-- name: able
-- A fragment: the gate is not full, and something of it waits.
("limit" is null or running < "limit") and ready_at < 9223372036854775807

-- name: due_gates
-- A fragment: gates of these places that may let something start.
select g.id, g.running, g.tat, json_extract(p.value, '$.concurrency') as concurrency,
       json_extract(p.value, '$.rate') as rate
  from json_each(:places) p cross join todoku_gate g indexed by todoku_gate_due
 where g.queue = json_extract(p.value, '$.queue') and g.destination = json_extract(p.value, '$.destination')
   and (g."limit" is null or g.running < g."limit") and g.ready_at < 9223372036854775807
   and g.ready_at <= :now and {live} and {open}
 limit :gates

-- name: take_gates
-- As PostgreSQL: full gates and those where nothing waits are not in the index; the limit is that of who claims. What
-- is taken goes to the end of the line.
select id, rate, min(coalesce(concurrency - running, 1000000), coalesce({allowed}, 1000000)) from ({due_gates});
update todoku_gate as g set "limit" = d.concurrency, rate = d.rate, ready_at = :now
  from ({due_gates}) d where g.id = d.id

-- name: gate_rows
-- A fragment: of each gate as many due rows as its limit leaves, larger priorities first.
select id from (
    select d.id, s.value as most,
           row_number() over (partition by s.key order by d.priority desc, d.next_run_at, d.id) as place
      from json_each(:mosts) s cross join {priorities} p cross join todoku_delivery d
        on d.id in (select n.id from todoku_delivery n indexed by todoku_delivery_gate
                     where n.gate = cast(s.key as integer) and n.gate is not null and n.priority = p.value
                       and n.status in ('pending', 'failed') and n.lost = 0
                       and n.next_run_at <= :now and n.expires_at > :now
                     order by n.next_run_at, n.id limit :most))
 where place <= most and {live}

-- name: claim_gate_rows
-- The gates were counted in this transaction. Reads and takes the same rows.
{claimed} from todoku_delivery t {claimed_from} where t.id in ({gate_rows})
 order by t.priority desc, t.next_run_at, t.id;
{take} where id in ({gate_rows})

-- name: suspect_gates
-- Only reads: the gates of due rows whose owner died, of which there are few.
select distinct d.gate from json_each(:places) p cross join todoku_delivery d indexed by todoku_delivery_suspect
 where d.queue = json_extract(p.value, '$.queue') and d.destination = json_extract(p.value, '$.destination')
   and d.status in ('pending', 'failed') and d.lane is null and d.lost > 0 and d.gate is not null
   and d.next_run_at <= :now and d.expires_at > :now
 limit 100

-- name: spend_gates
-- This transaction has claimed so many of each.
update todoku_gate as g set tat = {credit} + cast(s.value * 1000000 / g.rate as integer)
  from json_each(:spent) s where g.id = cast(s.key as integer) and g.rate is not null

-- name: refresh_gates
-- As PostgreSQL: what runs is counted; what is due keeps the gate's place in the line; a rate keeps it waiting.
update todoku_gate as g set running = (
    select count(*) from todoku_delivery d indexed by todoku_delivery_gate_running
     where d.gate = g.id and d.gate is not null and d.status = 'sending')
 where g.id in (select value from json_each(:gates));
update todoku_gate as g
   set ready_at = max(
           case when n.next_run_at <= :now then min(g.ready_at, :now)
                when n.next_run_at is not null then n.next_run_at
                when g.running = 0 and g.tat > :now - 100000 then g.tat + 100000
                else 9223372036854775807 end,
           case when g.rate is not null then coalesce(g.tat, 0) else 0 end)
  from (select s.value as gate, (
            select min((select d.next_run_at from todoku_delivery d indexed by todoku_delivery_gate
                         where d.gate = s.value and d.gate is not null and d.priority = p.value
                           and d.status in ('pending', 'failed') and d.lost = 0 and d.expires_at > :now
                         order by d.next_run_at, d.id limit 1))
              from {priorities} p) as next_run_at
          from json_each(:gates) s) n
 where g.id = n.gate;
select id, running = 0 and ready_at = 9223372036854775807 from todoku_gate where id in (select value from json_each(:gates))

-- name: drop_gates
-- Nothing runs and nothing waits; what is published later comes with a call, and the call makes the gate again.
delete from todoku_gate
 where id in (select value from json_each(:gates)) and running = 0 and ready_at = 9223372036854775807
   and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_gate
                    where d.gate = todoku_gate.id and d.gate is not null and d.status in ('pending', 'failed'))

-- name: mark_inbox
-- Written in the transaction of the handler's own writes, right before the settle: it never waits for long (H21), and
-- the fenced settle behind it is the proof; seen twice is seen.
insert into todoku_inbox (consumer, message_id, seen_at) values (:consumer, :message_id, :now)
    on conflict do nothing

-- name: effects
-- Only reads, just before a send that may be a repetition (H13).
select json_extract(s.value, '$.id'), l.state, l.digest from json_each(:entries) s
  join todoku_ledger l on l.scope = json_extract(s.value, '$.scope')
   and l.key_hash = json_extract(s.value, '$.key_hash')

-- name: settle_effects
-- As PostgreSQL: a true success is recorded even by a stale worker (I7), a failure only by the owner; the first
-- success stays and lives 48 hours after the last (H16), another digest never overwrites it (I5), but a success does
-- overwrite what is none, whosever it is.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, http_status, response, created_at,
                           updated_at, expires_at)
select json_extract(s.value, '$.scope'), json_extract(s.value, '$.key_hash'), json_extract(s.value, '$.digest'),
       json_extract(s.value, '$.state'), json_extract(s.value, '$.message_id'),
       case json_extract(s.value, '$.state') when 'succeeded' then 200 end, json_extract(s.value, '$.response'),
       :now, :now, :now + cast(:ttl * 1000000 as integer)
  from json_each(:entries) s
 where json_extract(s.value, '$.state') = 'succeeded'
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
-- The publish entry lives as long after its last success as the effect entry (H16).
update todoku_ledger set expires_at = :now + cast(:ttl * 1000000 as integer)
 where (scope, key_hash) in (select json_extract(value, '$.scope'), json_extract(value, '$.key_hash')
                               from json_each(:entries))

-- name: settle_done
-- Fenced by (id, epoch, worker), and the row leaves `delivery` and enters `history` under one write lock. Returns the
-- tokens that were not ours, which are looked for only if a row is missing.
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                            replay_count, worker_id)
select :now, d.id, d.epoch, d.message_seq, d.destination, d.queue, d.attempts, d.replay_count, :worker
  from json_each(:tokens) s cross join todoku_delivery d
    on d.id = cast(s.key as integer) and d.epoch = s.value and d.worker_id = :worker;
select cast(s.key as integer) from json_each(:tokens) s
 where changes() < :number and not exists (
    select 1 from todoku_delivery d
     where d.id = cast(s.key as integer) and d.epoch = s.value and d.worker_id = :worker);
delete from todoku_delivery where id in (
    select d.id from json_each(:tokens) s cross join todoku_delivery d
        on d.id = cast(s.key as integer) and d.epoch = s.value and d.worker_id = :worker)

-- name: settle_rest
-- Fenced like settle_done; the failed attempt is written with its epoch before the row changes (H4), and the max_attempts
-- that the worker went by. Returns the tokens that were not ours, and what would run again but was cancelled meanwhile.
select json_extract(s.value, '$.id'), d.id is not null from json_each(:rows) s
  left join todoku_delivery d
    on d.id = json_extract(s.value, '$.id') and d.epoch = json_extract(s.value, '$.epoch') and d.worker_id = :worker
 where d.id is null or (d.cancel_requested and json_extract(s.value, '$.status') <> 'aborted');
insert into todoku_attempt (delivery_id, replay, number, epoch, started_at, ended_at, reason, error, worker_id,
                            response_status, response, message_seq)
select d.id, d.replay_count, d.attempts, d.epoch, d.claimed_at, :now, json_extract(s.value, '$.reason'),
       json_extract(s.value, '$.error'), :worker, json_extract(s.value, '$.response.status'),
       json_extract(s.value, '$.response'), d.message_seq
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
       epoch = d.epoch + 1, worker_id = null, cancel_requested = 0,
       attempts = d.attempts - json_extract(s.value, '$.snoozed'),
       snoozes = d.snoozes + json_extract(s.value, '$.snoozed'),
       max_attempts = json_extract(s.value, '$.max_attempts'),
       next_run_at = :now + cast(json_extract(s.value, '$.delay') * 1000000 as integer), updated_at = :now
  from json_each(:rows) s
 where d.id = json_extract(s.value, '$.id') and d.epoch = json_extract(s.value, '$.epoch') and d.worker_id = :worker

-- name: cancelled
-- A fragment: a cancellation that its owner did not see, or did not live to obey, outlives it (H22).
'cancelled while it ran'

-- name: settle_results
-- The delivery was settled by us in this transaction.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select json_extract(value, '$.delivery_id'), json_extract(value, '$.message_seq'), json_extract(value, '$.result'), :now
  from json_each(:rows) where true
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: lock_lanes
-- No lock to take: there is one writer.
select 0

-- name: settle_lanes
-- As PostgreSQL: the lanes are ours until nothing of theirs is in flight.
select l.id, l.destination, not ({busy}) and not ({parks}) and not exists (
           select 1 from todoku_delivery d where d.lane = l.id and d.lane is not null and d.status <> 'aborted')
  from todoku_lane l where l.id in (select value from json_each(:lanes)) and l.worker_id = :worker;
update todoku_lane as l
   set failures = case when l.id in (select value from json_each(:failing)) then l.failures + 1
                       when l.id in (select value from json_each(:succeeding)) then 0 else l.failures end,
       parked = {parks},
       worker_id = case when {busy} then l.worker_id end,
       epoch = l.epoch + not {busy},
       ready_at = coalesce((select d.next_run_at from todoku_delivery d indexed by todoku_delivery_lane
                             where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                             order by d.id limit 1), :now + 20000)
 where l.id in (select value from json_each(:lanes)) and l.worker_id = :worker

-- name: busy
-- A fragment: something of the lane is in flight.
l.id in (select d.lane from todoku_delivery d indexed by todoku_delivery_owner
         where d.worker_id = :worker and d.status = 'sending' and d.lane is not null)

-- name: parks
-- A fragment: a dead letter blocks the lane, unless its destination skips them.
(l.parked or (l.id in (select value from json_each(:aborting)) and not {skips}))

-- name: try_lock_lanes
-- No lock to try: the single writer orders publishers and this settle.
select cast(key as integer) from json_each(:locks)

-- name: drop_empty_lanes
-- In the transaction that emptied it, so no publisher can have come in between.
delete from todoku_lane
 where id in (select value from json_each(:lanes)) and worker_id is null and parked = 0
   and not exists (select 1 from todoku_delivery d
                    where d.lane = todoku_lane.id and d.lane is not null and d.status <> 'aborted')

-- name: settled_before
-- Only reads: which tokens this worker already settled, when the reply to its commit was lost (H4).
select h.delivery_id, h.epoch from todoku_history h
 where h.message_seq in (select value from json_each(:message_seqs))
   and h.delivery_id in (select value from json_each(:ids)) and h.worker_id = :worker
union all
select a.delivery_id, a.epoch from todoku_attempt a
 where a.delivery_id in (select value from json_each(:ids)) and a.worker_id = :worker

-- name: release
-- Fenced; the attempt never started, so it is given back (I4). A token works once: repeated, it changes nothing.
update todoku_delivery as d
   set status = case when cancel_requested then 'aborted' else 'pending' end,
       reason = case when cancel_requested then 'CANCELLED' else d.reason end,
       error = case when cancel_requested then {cancelled} else d.error end,
       epoch = d.epoch + 1, worker_id = null, attempts = d.attempts - 1, cancel_requested = 0, updated_at = :now,
       next_run_at = case when :delay > 0 then :now + cast(:delay * 1000000 as integer) else d.next_run_at end
  from json_each(:tokens) s
 where d.id = cast(s.key as integer) and d.epoch = s.value and d.worker_id = :worker
returning id, status

---------------------------------------------------------------------------------- what follows an end
-- In the transaction that ends deliveries, as its last statements: deliveries, lanes, then these (H11).

-- name: over
-- Only reads rows that this transaction has changed, or is about to.
select d.id, m.id, m.topic, m.key, d.destination, d.queue, m.headers, d.status, d.reason, d.error, d.attempts,
       d.replay_count
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where d.id in (select value from json_each(:ids)) order by d.id

-- name: callback_sources
-- Only reads: messages of deliveries that this transaction has ended, and the last answer each of them had.
select json_extract(s.value, '$.delivery'), m.payload, m.payload_bytes, m.content_type, m.created_at / 1e6,
       (select a.response from todoku_attempt a
         where a.delivery_id = json_extract(s.value, '$.delivery') and a.response is not null
         order by a.epoch desc limit 1)
  from json_each(:rows) s join todoku_message m on m.id = json_extract(s.value, '$.message')

-- name: hooks
-- Only reads: those that were announced at most so long before the newest announcement of anything. While nobody works
-- nothing is announced, and nothing is forgotten.
select h.name, h.event, h.queue, h.max_attempts, h.timeout, h.topic, h.destination, h.from_queue from todoku_hook h
 where h.seen_at > (select max(seen_at) from ({announcements})) - cast(:forgotten_after * 1000000 as integer)
 order by h.name, h.event

-- name: announcements
-- A fragment: when anything was announced.
select max(seen_at) as seen_at from todoku_destination union all select max(seen_at) from todoku_hook

-- name: announce_hooks
-- The last who announces a hook says what it hears.
insert into todoku_hook (name, event, queue, max_attempts, timeout, topic, destination, from_queue, seen_at)
select json_extract(value, '$.name'), json_extract(value, '$.event'), json_extract(value, '$.queue'),
       json_extract(value, '$.max_attempts'), json_extract(value, '$.timeout'), json_extract(value, '$.topic'),
       json_extract(value, '$.destination'), json_extract(value, '$.from_queue'), :now
  from json_each(:hooks) where true
    on conflict (name, event) do update
       set queue = excluded.queue, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
           topic = excluded.topic, destination = excluded.destination, from_queue = excluded.from_queue,
           seen_at = excluded.seen_at

-- name: publish_batch
-- Its members are published in the same transaction. Without members there is nothing to wait for.
insert into todoku_batch (id, total, open, "on", next, created_at, done_at)
values (:id, :total, :total, :on, :next, :now, case :total when 0 then :now end)

-- name: complete
-- A fragment: nothing is left to wait for, and what follows is not published yet.
(done_at is null and open = 0 and ("on" = 'finished' or aborted = 0))

-- name: lock_batches
-- No lock to take: there is one writer.
select 0

-- name: count_batches
-- Of each batch once. Only an end that happened in this transaction is counted, and a token ends once (I3).
update todoku_batch as b
   set open = b.open - json_extract(s.value, '$.ended'), succeeded = b.succeeded + json_extract(s.value, '$.succeeded'),
       aborted = b.aborted + json_extract(s.value, '$.aborted')
  from json_each(:counts) s where b.id = json_extract(s.value, '$.id');
select id, {complete}, next from todoku_batch
 where id in (select json_extract(value, '$.id') from json_each(:counts))

-- name: finish_batches
-- What follows was published in this transaction; whoever comes second finds it done.
update todoku_batch set done_at = :now, next = null
 where id in (select value from json_each(:ids)) and done_at is null

-- name: due_batches
-- Only reads: the small index of those whose next could not be published with the end of their last member.
select id from todoku_batch indexed by todoku_batch_due where {complete} order by id limit :most

-- name: take_batch
-- The write lock is held: nobody else publishes what follows.
select next from todoku_batch where id = :id and {complete}

-- name: give_up_batches
-- A member that has to succeed was removed for good: nothing will ever follow.
update todoku_batch set done_at = :now, next = null
 where id in (select value from json_each(:ids)) and done_at is null and "on" = 'succeeded'

-- name: batch
-- Only reads.
select id, "on", total, open, succeeded, aborted, created_at / 1e6, done_at / 1e6 from todoku_batch where id = :id

--------------------------------------------------------------------------------- what a person does

-- name: matching
-- A fragment: the filter of find, replay, cancel and purge. An absent filter takes everything.
(:ids is null or d.id in (select value from json_each(:ids)))
   and (:message_id is null or m.id = :message_id)
   and (:status is null or d.status = :status)
   and (:topic is null or m.topic = :topic)
   and (:destination is null or d.destination = :destination)
   and (:queue is null or d.queue = :queue)
   and (:reason is null or d.reason = :reason)
   and (:key is null or m.key = :key)
   and (:since is null or d.updated_at >= :since)
   and (:until is null or d.updated_at < :until)
   and (not :due or (d.status in ('pending', 'failed') and d.next_run_at <= :now))

-- name: pick
-- The write lock is held: what it returns cannot change before the act is done.
select d.id, d.lane, d.gate, d.destination, d.queue, d.status, d.reason, m.key, m.key_hash, m.digest, m.id, m.scope
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:among is null or d.status in (select value from json_each(:among))) and d.id > :after
 order by d.id limit :most

-- name: replay
-- The rows are `aborted`; attempts start at 0, the epoch goes on rising (I4, I9). What killed its workers stays a
-- suspect: it still comes alone (H6).
update todoku_delivery
   set status = 'pending', epoch = epoch + 1, attempts = 0, lost = min(lost, 1), snoozes = 0,
       replay_count = replay_count + 1, reason = null, error = null, cancel_requested = 0,
       next_run_at = :now, expires_at = 9223372036854775807, updated_at = :now
 where id in (select value from json_each(:ids)) and status = 'aborted'
returning id

-- name: replay_ledger
-- What is running again is not failed any more: a repeat must not be answered with the old failure (H15).
update todoku_ledger set state = 'accepted', updated_at = :now, expires_at = 9223372036854775807
 where state = 'failed' and (scope, key_hash, digest) in (
    select json_extract(value, '$.scope'), json_extract(value, '$.key_hash'), json_extract(value, '$.digest')
      from json_each(:entries))

-- name: once_reopen
-- As replay_ledger, for whoever accepted the work under the name of its destination. Only what failed: a success stays.
update todoku_ledger set state = 'accepted', updated_at = :now
 where state = 'failed' and (scope, key_hash) in (
    select json_extract(value, '$.scope'), json_extract(value, '$.key_hash') from json_each(:entries))

-- name: replay_lanes
-- A replayed row has the lowest id of its lane, so it is the head again.
insert into todoku_lane (id, queue, destination, ready_at)
select json_extract(value, '$.lane'), json_extract(value, '$.queue'), json_extract(value, '$.destination'), :now
  from json_each(:lanes) where true
    on conflict (id) do update set ready_at = excluded.ready_at

-- name: refresh_lanes
-- Their next row, and so their time, may be another one now. If a worker owns the lane, its settle looks again.
update todoku_lane as l
   set parked = l.parked and not :unpark,
       ready_at = coalesce((select d.next_run_at from todoku_delivery d indexed by todoku_delivery_lane
                             where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                             order by d.id limit 1), :now)
 where l.id in (select value from json_each(:lanes))

-- name: audit
-- Append-only, in the transaction of what it tells of.
insert into todoku_audit (at, by, action, target, why)
select :now, :by, :action, value, :why from json_each(:targets)

-- name: cancel
-- What waits is aborted, what runs is asked (H22). A finished one is gone.
update todoku_delivery
   set status = case status when 'sending' then 'sending' else 'aborted' end,
       epoch = epoch + case status when 'sending' then 0 else 1 end,
       cancel_requested = status = 'sending',
       reason = case status when 'sending' then reason else 'CANCELLED' end,
       error = case status when 'sending' then error else :why end, updated_at = :now
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
-- Before the row goes, in its transaction. The rows do not run.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select id, message_seq, :result, :now from todoku_delivery
 where id in (select value from json_each(:ids)) and status <> 'sending'
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: settle_by_hand_aborted
-- Never a running row: its owner settles it.
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'BY_HAND', error = :why, updated_at = :now
 where id in (select value from json_each(:ids)) and status in ('pending', 'failed')
returning id

-- name: settle_by_hand_ledger
-- As settle_effects: the first success stays; another digest's failure is left alone (I5).
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
-- Only reads: the next rows of the history in their order, and whether each is meant. So many a time, meant or not.
select h.delivery_id, h.message_seq,
       coalesce(:topic is null or m.topic = :topic, 0) and (:until is null or h.finished_at < :until)
  from (select delivery_id, message_seq, finished_at from todoku_history
         where (message_seq, delivery_id) > (:after_seq, :after_id)
         order by message_seq, delivery_id limit :most) h
  left join todoku_message m on m.seq = h.message_seq
 order by h.message_seq, h.delivery_id

-- name: clear_history
-- What succeeded is over: nobody writes to it any more.
delete from todoku_history
 where message_seq in (select value from json_each(:seqs)) and delivery_id in (select value from json_each(:ids))
returning delivery_id

-- name: clear_attempts
-- Their deliveries went in this transaction.
delete from todoku_attempt where delivery_id in (select value from json_each(:ids))

-- name: clear_results
-- Their deliveries went in this transaction.
delete from todoku_result where delivery_id in (select value from json_each(:ids))

-- name: clear_messages
-- As prune_messages: only when no delivery of it is left, finished or not (I1).
delete from todoku_message
 where seq in (select value from json_each(:seqs))
   and not exists (select 1 from todoku_delivery d where d.message_seq = todoku_message.seq)
   and not exists (select 1 from todoku_history h where h.message_seq = todoku_message.seq)

-- name: set_queue
-- One row; claim reads it in its own statement, so a pause holds from the commit on.
insert into todoku_queue (name, paused, updated_at) values (:name, :paused, :now)
    on conflict (name) do update set paused = excluded.paused, updated_at = excluded.updated_at

-- name: limit_queue
-- One row; running workers read it every second or so (`limits`). A new rate begins anew.
insert into todoku_queue (name, "limit", rate, limit_until, updated_at)
values (:name, :concurrency, :rate, :now + cast(:lasts * 1000000 as integer), :now)
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null,
           updated_at = excluded.updated_at

-- name: limit_destination
-- As limit_queue. A destination nobody has announced yet is not announced by this: it was never seen.
insert into todoku_destination (name, "limit", rate, limit_until, seen_at)
values (:name, :concurrency, :rate, :now + cast(:lasts * 1000000 as integer), 0)
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null

-- name: set_breaker
-- One row, seen by the claims of all workers (H24).
insert into todoku_destination (name, open_until, failures, seen_at)
values (:name, :now + cast(:open_for * 1000000 as integer), :failures, :now)
    on conflict (name) do update set open_until = excluded.open_until, failures = excluded.failures

-- name: set_on_abort
-- One row; settle reads it when it aborts a lane's head.
insert into todoku_destination (name, on_abort, seen_at) values (:name, :on_abort, :now)
    on conflict (name) do update set on_abort = excluded.on_abort

---------------------------------------------------------------------------------------- maintenance

-- name: announce
-- Says that somebody here knows these destinations.
insert into todoku_destination (name, seen_at) select value, :now from json_each(:destinations) where true
    on conflict (name) do update set seen_at = excluded.seen_at

-- name: late
-- A fragment: waiting past its expiry.
select id from todoku_delivery indexed by todoku_delivery_expiring
 where status in ('pending', 'failed') and expires_at < 9223372036854775807 and expires_at <= :now limit :most

-- name: expire
-- Only rows that wait; a running one is past its expiry only for its owner.
select id, lane, gate from todoku_delivery where id in ({late});
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'EXPIRED', error = 'it was not delivered in time',
       updated_at = :now
 where id in ({late})

-- name: announced
-- Only reads: destinations that some worker has announced lately.
select name from todoku_destination where seen_at > :now - cast(:after * 1000000 as integer)

-- name: stray
-- A fragment: waiting so long for a destination nobody knows.
select id from todoku_delivery
 where queue = :queue and destination = :destination and status in ('pending', 'failed')
   and next_run_at <= :now - cast(:after * 1000000 as integer)
 order by id limit :most

-- name: abort_unknown
-- Only rows that have waited that long themselves, so a rolling deploy loses nothing.
select id, lane, gate from todoku_delivery where id in ({stray});
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'UNKNOWN_DESTINATION',
       error = 'no worker has registered ' || destination, updated_at = :now
 where id in ({stray})

-- name: prune_batches
-- Only what is over: a batch that still waits for something, a replay too, stays as long as that takes.
delete from todoku_batch where id in (
    select id from todoku_batch indexed by todoku_batch_done
     where done_at is not null and done_at < :now - cast(:ttl * 1000000 as integer) limit :most)
returning 1

-- name: prune_hooks
-- Those that `hooks` passes over anyway.
delete from todoku_hook
 where seen_at <= (select max(seen_at) from ({announcements})) - cast(:forgotten_after * 1000000 as integer)

-- name: old_messages
-- A fragment: of the next messages those that are old and have no delivery left.
select seq from (select seq, created_at from todoku_message where seq > :after order by seq limit :most) c
 where created_at < :now - cast(:ttl * 1000000 as integer)
   and not exists (select 1 from todoku_delivery d where d.message_seq = c.seq)

-- name: prune_messages
-- A message goes only when no delivery of it is left (I1), and deliveries are born with their message, never later.
select (select count(*) from ({old_messages})), max(seq),
       count(*) = :most and min(created_at < :now - cast(:ttl * 1000000 as integer))
  from (select seq, created_at from todoku_message where seq > :after order by seq limit :most);
delete from todoku_message where seq in ({old_messages})

-- name: prune_ledger
-- Never while a delivery with the key is there, dead letters included (H16).
delete from todoku_ledger where (scope, key_hash) in (
    select scope, key_hash from todoku_ledger l
     where expires_at <= :now and expires_at < 9223372036854775807
       and not exists (select 1 from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                        where m.key_hash = l.key_hash)
     limit :most)
returning 1

-- name: prune_attempts
-- Only of deliveries that are gone.
delete from todoku_attempt where rowid in (
    select o.rowid from todoku_attempt o
     where o.ended_at < :now - cast(:ttl * 1000000 as integer)
       and not exists (select 1 from todoku_delivery d where d.id = o.delivery_id) limit :most)
returning 1

-- name: prune_results
-- By age alone: a result is kept as long as the history of its delivery.
delete from todoku_result where delivery_id in (
    select delivery_id from todoku_result where created_at < :now - cast(:ttl * 1000000 as integer) limit :most)
returning 1

-- name: prune_inbox
-- By age alone: the retention is the deduplication window.
delete from todoku_inbox where (consumer, message_id) in (
    select consumer, message_id from todoku_inbox
     where seen_at < :now - cast(:ttl * 1000000 as integer) limit :most)
returning 1

-- name: old_history
-- A fragment: the next rows past their retention.
select rowid from todoku_history where finished_at < :now - cast(:ttl * 1000000 as integer) limit 50000

-- name: prune_history
-- By age alone; nothing writes to old rows.
select count(*) from ({old_history});
delete from todoku_history where rowid in ({old_history})

-- name: prepare_history
-- SQLite has no partitions to make.
select 0

-- name: stray_history
-- SQLite has no partitions to miss.
select 0

------------------------------------------------------------------------------------------ schedules

-- name: schedule_columns
-- A fragment: a schedule as people and workers see it, and the time it is.
name, spec, next_run_at / 1e6, paused, source, seen_at / 1e6, last_run_at / 1e6, last_message_id, error,
       updated_at / 1e6, :now / 1e6

-- name: schedule_kept
-- A fragment: not paused, and somebody keeps it: the database itself, or an App whose worker announced it lately.
paused = 0 and (source = 'stored' or seen_at > :now - cast(:after * 1000000 as integer))

-- name: next_schedule
-- Only reads: the time it is, the next slot of all, and whether there is any schedule. The index ends it at one row.
select :now / 1e6,
       (select next_run_at / 1e6 from todoku_schedule where {schedule_kept} order by next_run_at limit 1),
       exists (select 1 from todoku_schedule)

-- name: due_schedule
-- In the transaction that publishes and moves next_run_at on: whoever comes second finds the next slot there (I2).
select {schedule_columns}
  from todoku_schedule
 where {schedule_kept} and next_run_at <= :now and name not in (select value from json_each(:but))
 order by next_run_at, name limit 1

-- name: lock_schedule
-- There is one writer: nobody changes it before this transaction ends.
select {schedule_columns}
  from todoku_schedule where name = :name

-- name: advance_schedule
-- In the transaction of due_schedule, or of a person who runs it now and leaves next_run_at as it is.
update todoku_schedule
   set next_run_at = :next, last_run_at = coalesce(:slot, last_run_at),
       last_message_id = coalesce(:message_id, last_message_id), error = null
 where name = :name

-- name: fail_schedule
-- Says what is wrong and moves nothing: another worker may be able to fire it.
update todoku_schedule set error = :error where name = :name

-- name: put_schedule
-- One row; whether it changed was seen in this transaction. A pause is a person's and stays.
insert into todoku_schedule (name, spec, next_run_at, source, seen_at, updated_at)
values (:name, :spec, :next, :source, :now, :now)
    on conflict (name) do update
       set spec = excluded.spec, next_run_at = excluded.next_run_at, source = excluded.source,
           seen_at = excluded.seen_at, updated_at = excluded.updated_at, error = null

-- name: announce_schedules
-- Says that somebody here declares these. One that was taken over at run time stays so.
update todoku_schedule set seen_at = :now where name in (select value from json_each(:names)) and source = 'code'

-- name: pause_schedule
-- One row, of which next_run_at was decided in this transaction.
update todoku_schedule set paused = :paused, next_run_at = :next, updated_at = :now where name = :name

-- name: remove_schedule
-- What it has published stays, and is delivered.
delete from todoku_schedule where name = :name

-- name: schedules
-- Only reads.
select {schedule_columns}
  from todoku_schedule order by name

---------------------------------------------------------------------------------------- data keys

-- name: publish_data_keys
-- With the message sealed by it, in the caller's transaction; one that is there already is not stored again.
insert into todoku_data_key (id, day, master_key_id, wrapped, created_at)
select :id, :day, :master_key_id, :wrapped, :now
 where not exists (select 1 from todoku_data_key where id = :id)

-- name: data_keys
-- Only reads, by the index of ids: a key was stored before, or with, the message that needs it.
select id, day, master_key_id, wrapped from todoku_data_key
 where id in (select value from json_each(:ids)) order by seq

-- name: data_key_days
-- Only reads; there are few: one a process and day.
select day, master_key_id, count(distinct id), min(created_at) / 1e6
  from todoku_data_key group by day, master_key_id order by day, master_key_id

-- name: stale_data_keys
-- No lock to take: there is one writer.
select seq, id, day, master_key_id, wrapped from todoku_data_key
 where seq > :after and master_key_id <> :current order by seq limit :most

-- name: rewrap_data_key
-- Read by stale_data_keys in this transaction.
update todoku_data_key set master_key_id = :master_key_id, wrapped = :wrapped where seq = :seq

-- name: count_data_keys
-- Only reads.
select count(distinct id) from todoku_data_key where day >= :since and day < :before

-- name: stranded
-- Only reads: what is not succeeded and sealed by a key of these days, whose id is in the sealed bytes; of a request
-- with secret headers in those, too, in front.
select coalesce(sum(d.status <> 'aborted'), 0), coalesce(sum(d.status = 'aborted'), 0)
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where (m.content_type like :kind
        and lower(hex(substr(m.payload_bytes, 2, 16))) in (
            select replace(id, '-', '') from todoku_data_key where day >= :since and day < :before))
    or (m.headers like :secrets
        and substr(json_extract(m.headers, '$."todoku-secrets"'), 1, 36) in (
            select id from todoku_data_key where day >= :since and day < :before))

-- name: blank_data_keys
-- Only what the next statement deletes; of the same length, so that the bytes are overwritten where they are.
update todoku_data_key set wrapped = zeroblob(length(wrapped)) where day >= :since and day < :before

-- name: delete_data_keys
-- Days that are over: no process seals with their keys any more, and what they sealed cannot be read again by anybody.
delete from todoku_data_key where day >= :since and day < :before returning id, day

-- name: newest_messages
-- Only reads, so many rows from the end; a payload that is sealed, not JSON or large stays where it is.
select topic, case when length(cast(payload as blob)) <= :largest then payload end, content_type
  from todoku_message order by seq desc limit :most

------------------------------------------------------------------------------- secrets and tokens

-- name: lock_secrets
-- No lock to take: there is one writer.
select 0

-- name: secrets
-- Only reads: those of a name or of its family (null: all) that have not ended.
select id, name, value, master_key_id, created_at / 1e6,
       case when expires_at < 9223372036854775807 then expires_at / 1e6 end, :now / 1e6
  from todoku_secret
 where (:name is null or name = :name or substr(name, 1, length(:name) + 1) = :name || ':') and expires_at > :now
 order by created_at, id

-- name: put_secret
-- What there is was read in this transaction, under the one write lock.
insert into todoku_secret (id, name, value, master_key_id, created_at, expires_at)
values (:id, :name, :value, :master_key_id, :now,
        coalesce(:now + cast(:lasts * 1000000 as integer), 9223372036854775807))
    on conflict (id) do update
       set name = excluded.name, value = excluded.value, master_key_id = excluded.master_key_id,
           expires_at = excluded.expires_at

-- name: remove_secrets
-- They were read in this transaction, under the one write lock.
delete from todoku_secret where id in (select value from json_each(:ids))

-- name: prune_secrets
-- By time alone: what has ended is not read any more. Its bytes are written over first.
update todoku_secret set value = zeroblob(length(value)) where expires_at <= :now;
delete from todoku_secret where id in (select id from todoku_secret where expires_at <= :now limit :most)
returning 1

-- name: api_key_columns
-- A fragment: a token without its hash, and whether it opens anything.
id, name, scopes, created_at / 1e6, expires_at / 1e6, revoked_at / 1e6, last_used_at / 1e6,
       revoked_at is null and (expires_at is null or expires_at > :now)

-- name: add_api_key
-- The id and the hash are new: both are of chance.
insert into todoku_api_key (id, name, hash, scopes, created_at, expires_at)
values (:id, :name, :hash, :scopes, :now, :now + cast(:lasts * 1000000 as integer))

-- name: any_api_key
-- Only reads, under the one write lock.
select 1 from todoku_api_key limit 1

-- name: api_key
-- Only reads, by the unique index of hashes.
select {api_key_columns}
  from todoku_api_key where hash = :hash

-- name: api_keys
-- Only reads.
select {api_key_columns}
  from todoku_api_key order by created_at, id

-- name: revoke_api_key
-- One row, once: a token that was revoked stays so.
update todoku_api_key set revoked_at = :now where id = :id and revoked_at is null
returning {api_key_columns}

-- name: use_api_key
-- One row, and seldom: nothing but people reads it.
update todoku_api_key set last_used_at = :now
 where id = :id and (last_used_at is null or last_used_at <= :now - cast(:every * 1000000 as integer))

------------------------------------------------------------------ queues, flow keys and URL groups

-- name: queue_columns
-- A fragment: a queue with what is in force, and the time it is.
name, paused, case when {counts} then "limit" end, case when {counts} then rate end, spec, created_at / 1e6,
       updated_at / 1e6, tat / 1e6, :now / 1e6

-- name: http_queue
-- Only reads, by the primary key.
select {queue_columns}
  from todoku_queue where name = :name

-- name: http_queues
-- Only reads; the names of a kind lie side by side in the primary key.
select {queue_columns}
  from todoku_queue
 where name >= :kind and name < substr(:kind, 1, 4) || ';' and created_at is not null
   and (:search is null or instr(substr(name, 6), :search) > 0)
 order by name limit :most

-- name: lock_queue
-- There is one writer: nobody changes it before this transaction ends.
select {queue_columns}
  from todoku_queue where name = :name

-- name: make_queue
-- One row, if it is not there; what it says is written by put_queue in this transaction.
insert into todoku_queue (name, updated_at) values (:name, :now) on conflict (name) do nothing

-- name: put_queue
-- One row, seen in this transaction. A rate that is another one now begins anew.
update todoku_queue
   set paused = :paused, "limit" = :concurrency, rate = :rate, spec = :spec, limit_until = null,
       tat = case when rate is :rate then tat end, created_at = coalesce(created_at, :now), updated_at = :now
 where name = :name

-- name: remove_queue
-- One row; deliveries carry the name of their queue, and need no row of it.
delete from todoku_queue where name = :name and created_at is not null returning name

-- name: reset_rate
-- One row; the next claim counts from now.
update todoku_queue set tat = null, updated_at = :now where name = :name and created_at is not null returning name

-- name: queue_loads
-- Only reads: what waits is counted in the indexes that claim reads, up to a number; what runs in its small one.
select json_extract(p.value, '$.name'),
       (select count(*) from (select 1 from todoku_delivery d indexed by todoku_delivery_due
                               where d.queue = json_extract(p.value, '$.name') and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost = 0 and d.gate is null limit :most))
     + (select count(*) from (select 1 from todoku_delivery d indexed by todoku_delivery_suspect
                               where d.queue = json_extract(p.value, '$.name') and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost > 0 limit :most))
     + (select count(*) from (select 1 from todoku_delivery d indexed by todoku_delivery_lane
                               where d.lane = json_extract(p.value, '$.lane') and d.lane is not null
                                 and d.status <> 'aborted' and d.status <> 'sending' limit :most)),
       (select count(*) from todoku_delivery d indexed by todoku_delivery_owner
         where d.status = 'sending' and d.queue = json_extract(p.value, '$.name'))
  from json_each(:places) p

-- name: http_running
-- Only reads: what runs is in a small index, and so are the live leases.
select (select count(*) from todoku_delivery d indexed by todoku_delivery_owner
         where d.status = 'sending' and {is_http}),
       (select count(*) from todoku_worker where expires_at > :now)

-- name: is_http
-- A fragment, word for word as in the indexes of requests: the delivery is one of a request.
substr(queue || ':', 1, 5) in ('http:', 'flow:')

-- name: prune_cancelled
-- Requests that somebody cancelled, with an audit row that stays, when delivered ones would go too: nobody replays them.
delete from todoku_delivery where id in (
    select id from todoku_delivery indexed by todoku_delivery_died
     where status = 'aborted' and {is_http} and updated_at < :now - cast(:ttl * 1000000 as integer)
       and reason = 'CANCELLED' limit :most)
returning 1

-- name: prune_queues
-- Only what came into being by use: nobody has used it for long, nothing of it is left, and the next use makes it anew.
delete from todoku_queue where name in (
    select q.name from todoku_queue q
     where q.created_at is not null and q.paused = 0 and json_extract(q.spec, '$.implicit')
       and json_extract(q.spec, '$.pinned_parallelism') is null and json_extract(q.spec, '$.pinned_rate') is null
       and q.updated_at < :now - cast(:ttl * 1000000 as integer)
       and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_due
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost = 0 and d.gate is null)
       and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_suspect
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost > 0)
       and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_owner
                        where d.status = 'sending' and d.queue = q.name)
       and not exists (select 1 from todoku_lane l where l.queue = q.name)
     limit :most)
returning 1

-- name: groups
-- Only reads: there are few.
select name, headers, created_at / 1e6, updated_at / 1e6 from todoku_group
 where :names is null or name in (select value from json_each(:names))
 order by name

-- name: endpoints
-- Only reads: there are few. In the order in which they came.
select group_name, url, name, state = 'enabled', reason from todoku_endpoint
 where group_name is not null and (:names is null or group_name in (select value from json_each(:names)))
 order by group_name, id

-- name: put_group
-- One row; headers stay unless others are given.
insert into todoku_group (name, headers, created_at, updated_at) values (:name, :headers, :now, :now)
    on conflict (name) do update
       set headers = coalesce(excluded.headers, todoku_group.headers), updated_at = excluded.updated_at

-- name: put_endpoint
-- One row of a group for a URL; put again, it is enabled again.
insert into todoku_endpoint (id, url, state, spec, updated_at, group_name, name, created_at)
values (:id, :url, 'enabled', '{}', :now, :group, :name, :now)
    on conflict (group_name, url) do update
       set name = excluded.name, state = 'enabled', reason = null, updated_at = excluded.updated_at

-- name: remove_endpoints
-- What was published is delivered: a message carries its URL.
delete from todoku_endpoint
 where group_name = :group and (url in (select value from json_each(:urls)) or name in (select value from json_each(:names)))
returning url

-- name: touch_group
-- In the transaction that changed its endpoints.
update todoku_group set updated_at = :now where name = :name

-- name: remove_empty_group
-- In the transaction that took its last endpoint.
delete from todoku_group where name = :name and not exists (select 1 from todoku_endpoint where group_name = :name)

-- name: remove_group
-- With its endpoints, in one transaction. Messages carry their URL, and are delivered.
delete from todoku_endpoint where group_name = :name;
delete from todoku_group where name = :name returning name

-- name: set_endpoint
-- Whoever comes second changes nothing: it is so already.
update todoku_endpoint set state = :state, reason = :reason, updated_at = :now
 where url = :url and (:group is null or group_name = :group) and state <> :state
returning id

------------------------------------------------------------------------------------------- requests

-- name: http_topics
-- A fragment, word for word as in the index of requests: the message is one.
m.topic in ('http.request', 'http.callback')

-- name: request_columns
-- A fragment: a delivery and its request, without the body.
d.id, m.seq, m.id, m.headers, m.created_at / 1e6, d.status, d.queue, d.attempts, d.next_run_at / 1e6,
       d.updated_at / 1e6, d.reason, d.error, d.replay_count, d.cancel_requested, d.claimed_at / 1e6

-- name: finished_columns
-- A fragment: as request_columns, of one that was delivered.
h.delivery_id, m.seq, m.id, m.headers, m.created_at / 1e6, 'succeeded', h.queue, h.attempts, h.finished_at / 1e6,
       h.finished_at / 1e6, null, null, h.replay_count, 0, null

-- name: requests_of
-- Only reads, by the unique index of ids, in one statement: what is being settled is in one of the two.
select {request_columns}
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id in (select value from json_each(:ids)) and {http_topics}
 union all
select {finished_columns}
  from todoku_message m join todoku_history h on h.message_seq = m.seq
 where m.id in (select value from json_each(:ids)) and {http_topics}
 order by 1

-- name: dead_requests
-- Only reads, down the index of dead requests from a position on.
select {request_columns}
  from (select * from todoku_delivery indexed by todoku_delivery_died
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and (:cancelled or coalesce(reason, '') <> 'CANCELLED')
         order by updated_at desc, id desc limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.updated_at desc, d.id desc

-- name: dead_requests_of
-- Only reads, by the primary key.
select {request_columns}
  from todoku_delivery d cross join todoku_message m on m.seq = d.message_seq
 where d.id in (select value from json_each(:ids)) and d.status = 'aborted' and {http_topics}
 order by d.updated_at desc, d.id desc

-- name: waiting_requests
-- Only reads, up the ids from a position on. The act that follows looks at each again, under its lock.
select {request_columns}
  from (select * from todoku_delivery not indexed
         where id > :after and status in ('pending', 'failed', 'sending') and not cancel_requested and {is_http}
         order by id limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.id

-- name: request_bodies
-- Only reads, by the unique index of ids.
select m.id, m.topic, m.content_type, coalesce(m.payload_bytes, cast(m.payload as blob)) from todoku_message m
 where m.id in (select value from json_each(:ids)) and {http_topics}

-- name: is_last_try
-- A fragment: no other attempt followed this one before the next replay.
not exists (select 1 from todoku_attempt b
             where b.delivery_id = a.delivery_id and b.epoch > a.epoch and b.replay = a.replay)

-- name: killed
-- A fragment: the end of this attempt made the delivery a dead letter: nothing has changed it since.
(d.status = 'aborted' and d.epoch = a.epoch + 1)

-- name: tried_columns
-- A fragment: a failed attempt, whether anything followed it, whether it is why the delivery is dead, and its message.
a.delivery_id, a.epoch, a.replay, a.number, a.started_at / 1e6, a.ended_at / 1e6, a.reason, a.error, a.response,
       {is_last_try} and case when d.id is not null then d.replay_count > a.replay or {killed}
           else not exists (select 1 from todoku_history h where h.message_seq = a.message_seq
                               and h.delivery_id = a.delivery_id and h.replay_count = a.replay) end,
       d.id is not null and {killed},
       m.id, m.headers, m.created_at / 1e6

-- name: attempts_of_requests
-- Only reads, by the index of attempts.
select {tried_columns}
  from todoku_attempt a left join todoku_delivery d on d.id = a.delivery_id
  join todoku_message m on m.seq = coalesce(a.message_seq, d.message_seq)
 where a.delivery_id in (select value from json_each(:ids)) and {http_topics}
 order by a.delivery_id, a.epoch

-- name: last_tried
-- Only reads, by the index of attempts, whose last entry of a delivery is its last attempt.
select {tried_columns}
  from todoku_attempt a left join todoku_delivery d on d.id = a.delivery_id
  join todoku_message m on m.seq = coalesce(a.message_seq, d.message_seq)
 where a.delivery_id in (select value from json_each(:ids)) and {http_topics}
   and a.epoch = (select max(b.epoch) from todoku_attempt b where b.delivery_id = a.delivery_id)

-- name: requests_created
-- Only reads, by the unique index of ids.
select m.id, m.headers, m.created_at / 1e6 from todoku_message m
 where m.id in (select value from json_each(:ids)) and {http_topics}

-- name: created_requests
-- Only reads, down the index of requests from a position on: ids begin with their time.
select m.id, m.headers, m.created_at / 1e6 from todoku_message m indexed by todoku_message_http
 where {http_topics} and m.id <= :before and m.id >= :since
 order by m.id desc limit :most

-- name: sending_requests
-- Only reads: what is in flight has a small index.
select {request_columns}
  from (select * from todoku_delivery indexed by todoku_delivery_owner
         where status = 'sending' and {is_http} and claimed_at >= :since and (claimed_at, id) <= (:before, :before_id)
         order by claimed_at desc, id desc limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.claimed_at desc, d.id desc

-- name: tried_requests
-- Only reads, down the index of ends from a position on; so many rows, those that are of no request too.
select {tried_columns}
  from (select * from todoku_attempt indexed by todoku_attempt_ended
         where ended_at >= :since and ended_at <= :before
           and (ended_at, delivery_id, epoch) <= (:before, :before_id, :before_epoch)
         order by ended_at desc, delivery_id desc, epoch desc limit :most) a
  left join todoku_delivery d on d.id = a.delivery_id
  left join todoku_message m on m.seq = coalesce(a.message_seq, d.message_seq) and {http_topics}
 order by a.ended_at desc, a.delivery_id desc, a.epoch desc

-- name: delivered_requests
-- Only reads, down the index of delivered requests from a position on.
select {finished_columns}
  from (select * from todoku_history indexed by todoku_history_http
         where {is_http} and finished_at >= :since and (finished_at, delivery_id) <= (:before, :before_id)
         order by finished_at desc, delivery_id desc limit :most) h
  left join todoku_message m on m.seq = h.message_seq and {http_topics}
 order by h.finished_at desc, h.delivery_id desc

------------------------------------------------------------------------------------------- reading

-- name: clock
-- Only reads: the database's clock, having touched the file.
select :now / 1e6 from (select count(*) from todoku_migration)

-- name: schema_version
-- Only reads.
select max(version) from todoku_migration

-- name: find
-- Only reads. By id downwards from the cursor, so a page is as cheap as the first.
select d.id, m.id, m.topic, m.key, d.destination, d.queue, d.lane, d.priority, d.status, d.attempts,
       d.max_attempts, d.lost, d.snoozes, d.replay_count, d.epoch, d.worker_id, d.cancel_requested,
       d.next_run_at / 1e6, m.created_at / 1e6, d.updated_at / 1e6, d.reason, d.error
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:before is null or d.id < :before)
 order by d.id desc limit :most

-- name: find_history
-- Only reads. By (message, delivery) downwards; a message that was pruned already is still told of.
select h.delivery_id, m.id, m.topic, m.key, h.destination, h.queue, null, 0, 'succeeded', h.attempts,
       h.attempts, 0, 0, h.replay_count, h.epoch, h.worker_id, 0,
       h.finished_at / 1e6, m.created_at / 1e6, h.finished_at / 1e6, null, null, h.message_seq
  from todoku_history h left join todoku_message m on m.seq = h.message_seq
 where (:message_id is null or m.id = :message_id)
   and (:ids is null or h.delivery_id in (select value from json_each(:ids)))
   and (:topic is null or m.topic = :topic)
   and (:destination is null or h.destination = :destination)
   and (:queue is null or h.queue = :queue)
   and (:key is null or m.key = :key)
   and (:since is null or h.finished_at >= :since)
   and (:until is null or h.finished_at < :until)
   and (:before is null or (h.message_seq, h.delivery_id) < (:before_seq, :before))
 order by h.message_seq desc, h.delivery_id desc limit :most

-- name: message
-- Only reads.
select seq, id, topic, type, key, payload, payload_bytes, content_type, headers, labels, created_at / 1e6
  from todoku_message where id = :message_id

-- name: attempts
-- Only reads.
select delivery_id, replay, number, epoch, started_at / 1e6, ended_at / 1e6, reason, error, worker_id, response
  from todoku_attempt where delivery_id in (select value from json_each(:ids)) order by delivery_id, epoch

-- name: audits
-- Only reads.
select at / 1e6, by, action, target, why from todoku_audit
 where target in (select value from json_each(:targets)) order by id

-- name: result
-- Only reads.
select result from todoku_result where delivery_id = :id

-- name: standing
-- Only reads, in one statement: a delivery that is being settled is in one of the two, never in neither.
select d.id, d.status, d.reason, d.error, null
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.destination = :destination
 union all
select h.delivery_id, 'succeeded', null, null,
       (select r.result from todoku_result r where r.delivery_id = h.delivery_id)
  from todoku_message m join todoku_history h on h.message_seq = m.seq
 where m.id = :message_id and h.destination = :destination

-- name: entry
-- Only reads.
select digest, state, message_id, http_status, response, created_at / 1e6, updated_at / 1e6
  from todoku_ledger where scope = :scope and key_hash = :key_hash

-- name: size
-- Only reads, at most so many rows: enough to know whether counting is cheap.
select (select count(*) from (select 1 from todoku_delivery limit :most)),
       (select min(id) from todoku_delivery), (select max(id) from todoku_delivery)

-- name: count_deliveries
-- Only reads, at most so many rows.
select status, destination, coalesce(reason, ''), count(*)
  from (select status, destination, reason from todoku_delivery order by id limit :most) d group by 1, 2, 3

-- name: count_dead
-- Only reads, at most so many rows, by the index of dead letters.
select destination, coalesce(reason, ''), count(*)
  from (select destination, reason from todoku_delivery indexed by todoku_delivery_dead
         where status = 'aborted' order by id limit :most)
 group by 1, 2

-- name: edges
-- Only reads: of each part of the id range the first and the last id in it, by two probes of the primary key.
select low, high from (
    select (select min(d.id) from todoku_delivery d where d.id >= json_extract(s.value, '$.low')
               and d.id <= json_extract(s.value, '$.high')) as low,
           (select max(d.id) from todoku_delivery d where d.id >= json_extract(s.value, '$.low')
               and d.id <= json_extract(s.value, '$.high')) as high
      from json_each(:parts) s)
 where low is not null

-- name: count_sample
-- Only reads: windows of the id range; each row stands for as many as its window goes into its piece.
select d.status, d.destination, coalesce(d.reason, ''), sum(json_extract(s.value, '$.weight'))
  from json_each(:windows) s cross join todoku_delivery d
    on d.id >= json_extract(s.value, '$.start')
   and d.id < json_extract(s.value, '$.start') + json_extract(s.value, '$.width')
 group by 1, 2, 3

-- name: lag_due
-- Only reads. Of each place at most so many rows, from the index alone, oldest first.
select json_extract(found, '$[0]'), json_extract(found, '$[1]'), json_extract(found, '$[0]')
  from (select (select json_array(count(*), coalesce((:now - min(next_run_at)) / 1e6, 0)) from (
                    select d.next_run_at from todoku_delivery d indexed by todoku_delivery_due
                     where d.queue = json_extract(s.value, '$.queue')
                       and d.destination = json_extract(s.value, '$.destination')
                       and d.priority = json_extract(s.value, '$.priority')
                       and d.status in ('pending', 'failed') and d.lane is null and d.lost = 0 and d.gate is null
                       and d.next_run_at <= :now and d.expires_at > :now
                     order by d.next_run_at, d.id limit :most)) as found
          from json_each(:places) s)

-- name: lag_apart
-- Only reads: what is not in the due index. Lanes by theirs, so that no other row is walked; suspects, which are few;
-- gates by theirs. At most so many rows of each are looked at.
select count(*) filter (where due), coalesce((:now - min(next_run_at) filter (where due)) / 1e6, 0), count(*)
  from (select next_run_at, status in ('pending', 'failed') and next_run_at <= :now and expires_at > :now as due
          from todoku_delivery indexed by todoku_delivery_lane
         where lane is not null and status <> 'aborted' order by lane, id limit :most)
union all
select count(*) filter (where due), coalesce((:now - min(next_run_at) filter (where due)) / 1e6, 0), count(*)
  from (select next_run_at, next_run_at <= :now and expires_at > :now as due
          from todoku_delivery indexed by todoku_delivery_suspect
         where status in ('pending', 'failed') and lane is null and lost > 0
         order by queue, destination, next_run_at, id limit :most)
union all
select count(*) filter (where due), coalesce((:now - min(next_run_at) filter (where due)) / 1e6, 0), count(*)
  from (select next_run_at, lost = 0 and next_run_at <= :now and expires_at > :now as due
          from todoku_delivery indexed by todoku_delivery_gate
         where status in ('pending', 'failed') and gate is not null
         order by gate, priority, next_run_at, id limit :most)

-- name: lag_held
-- Only reads: what is in flight by its small index, and at most so many dead letters by theirs.
select count(*),
       count(*) filter (where d.claimed_at < :now - :stuck_after * 1e6
                           or not exists (select 1 from todoku_worker w
                                           where w.id = d.worker_id and w.expires_at > :now)),
       (select count(*) from (select 1 from todoku_delivery indexed by todoku_delivery_dead
                               where status = 'aborted' order by id limit :most))
  from todoku_delivery d indexed by todoku_delivery_owner where d.status = 'sending'

-- name: lag_sample
-- Only reads: as count_sample, of what is due and of dead letters.
select sum(json_extract(s.value, '$.weight')) filter (where d.status in ('pending', 'failed')
                                                        and d.next_run_at <= :now and d.expires_at > :now),
       sum(json_extract(s.value, '$.weight')) filter (where d.status = 'aborted')
  from json_each(:windows) s cross join todoku_delivery d
    on d.id >= json_extract(s.value, '$.start')
   and d.id < json_extract(s.value, '$.start') + json_extract(s.value, '$.width')

-- name: count_history
-- Only reads: exactly while there are few; then both ends, whose distance is the number, because rows are appended and
-- pruned in order (but for what a person cleared).
select case when few <= 100000 then few
            else (select max(rowid) from todoku_history) - (select min(rowid) from todoku_history) + 1 end
  from (select count(*) as few from (select 1 from todoku_history limit 100001))

-- name: limits
-- Only reads: one row per queue and destination that says something, and per live lease. A few rows, in one statement,
-- because every worker asks every second. A limit whose time is over says nothing.
select 'queue', name, paused, case when {counts} then "limit" end, case when {counts} then rate end, 0.0, 0
  from todoku_queue
 where paused or {counts}
union all
select 'destination', name, 0, case when {counts} then "limit" end, case when {counts} then rate end,
       case when open_until > :now then open_until / 1e6 else 0.0 end, failures
  from todoku_destination
 where open_until > :now or failures > 0 or {counts}
union all
select 'worker', id, 0, null, null, 0.0, 0 from todoku_worker where expires_at > :now
 order by 1, 2

-- name: counts
-- A fragment: whether the limit of a row is in force.
(("limit" is not null or rate is not null) and (limit_until is null or limit_until > :now))

-- name: workers
-- Only reads; what each holds is counted in the small index of rows in flight.
select id, name, state, started_at / 1e6, expires_at / 1e6,
       (select count(*) from todoku_delivery d where d.status = 'sending' and d.worker_id = w.id)
  from todoku_worker w order by started_at, id

-- name: previews
-- Only reads; a payload too large to be shown stays where it is.
select id, case when length(cast(payload as blob)) <= :largest then payload end,
       coalesce(length(cast(payload as blob)), length(payload_bytes)), content_type
  from todoku_message where id in (select value from json_each(:ids))

-- name: dead_groups
-- Only reads, at most so many rows, by the index of dead letters. The newest of each group is its example.
select g.reason, g.destination, g.number, g.since / 1e6, g.until / 1e6, g.newest,
       (select error from todoku_delivery where id = g.newest)
  from (select coalesce(reason, '') as reason, destination, count(*) as number, min(updated_at) as since,
               max(updated_at) as until, max(id) as newest
          from (select id, reason, destination, updated_at from todoku_delivery indexed by todoku_delivery_dead
                 where status = 'aborted' order by id limit :most)
         group by 1, 2) g
 order by g.number desc, 1, 2

-- name: known
-- Only reads: every queue and destination somebody has said something about, and when a worker last announced it.
select 'queue', name, null from todoku_queue
union all
select 'destination', name, case when seen_at > 0 then seen_at / 1e6 end from todoku_destination
 order by 1, 2

-- name: situation
-- Only reads; what is in flight is counted in its small index.
select case when d.expires_at < 9223372036854775807 then d.expires_at / 1e6 end, d.claimed_at / 1e6,
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.queue = d.queue),
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.destination = d.destination), d.gate
  from todoku_delivery d where d.id = :id

-- name: gate
-- Only reads.
select key, "limit", rate, running, case when rate is not null then tat / 1e6 end from todoku_gate where id = :gate

-- name: full_gates
-- Only reads: gates at their limit with something behind it, found by what runs. No more is counted than is shown.
select queue, destination, key, "limit", rate, running, number from (
    select g.queue, g.destination, g.key, g."limit", g.rate, g.running,
           (select count(*) from (select 1 from todoku_delivery w indexed by todoku_delivery_gate
                                   where w.gate = g.id and w.gate is not null and w.status in ('pending', 'failed')
                                   limit :counted)) as number
      from (select distinct gate from todoku_delivery indexed by todoku_delivery_gate_running
             where status = 'sending' and gate is not null) d
      join todoku_gate g on g.id = d.gate and g.running >= g."limit")
 where number > 0
 order by number desc, destination, key limit :most

-- name: lane
-- Only reads.
select ready_at / 1e6, worker_id, failures, parked from todoku_lane where id = :lane

-- name: lane_head
-- Only reads: the first row of a lane that is not over, which is the next to run (I10).
select id from todoku_delivery indexed by todoku_delivery_lane
 where lane = :lane and lane is not null and status <> 'aborted' order by id limit 1

-- name: lane_blocker
-- Only reads: the dead letters of a lane that can have parked it.
select id from todoku_delivery indexed by todoku_delivery_dead
 where lane = :lane and status = 'aborted' and coalesce(reason, '') not in (select value from json_each(:gone))
 order by id limit 1

-- name: audit_page
-- Only reads, by number downwards. A filter that few acts pass walks the rest: acts of people are not many.
select id, at / 1e6, by, action, target, why from todoku_audit
 where (:before is null or id < :before)
   and (:by is null or by = :by)
   and (:action is null or action = :action)
   and (:target is null or target = :target)
 order by id desc limit :most

-- name: series_size
-- Only reads both ends of the span: rows are appended in order of time, so their distance is about the number.
select coalesce((select rowid from todoku_history where finished_at < :until order by finished_at desc limit 1)
                - (select rowid from todoku_history where finished_at >= :since order by finished_at limit 1) + 1, 0)

-- name: series
-- Only reads: the span alone, from the index.
select finished_at / 1000000 / :width * :width, count(*)
  from todoku_history
 where finished_at >= :since and finished_at < :until
 group by 1

-- name: series_sampled
-- Only reads: one row in :step, each standing for as many.
with recursive
    picked(id, last) as (
        select (select rowid from todoku_history where finished_at >= :since order by finished_at limit 1),
               (select rowid from todoku_history where finished_at < :until order by finished_at desc limit 1)
        union all
        select id + :step, last from picked where id + :step <= last)
select h.finished_at / 1000000 / :width * :width, count(*) * :step
  from picked p join todoku_history h on h.rowid = p.id
 where h.finished_at >= :since and h.finished_at < :until
 group by 1

-- name: series_failed
-- Only reads, by the index, the latest :most of the span.
select ended_at / 1000000 / :width * :width, count(*)
  from (select ended_at from todoku_attempt
         where ended_at >= :since and ended_at < :until order by ended_at desc limit :most)
 group by 1

-- name: tail
-- Only reads, of each kind at most so many of the latest, so that it costs the same however much there is. What one
-- transaction wrote has one time: there `turn` tells what came first.
select at / 1e6, what, delivery_id, message_id, topic, destination, told, mark from (
    select * from (
        select created_at as at, 'published' as what, null as delivery_id, id as message_id, topic,
               null as destination, key as told, cast(seq as text) as mark, seq as turn
          from todoku_message order by seq desc limit :most)
    union all
    select h.finished_at, 'succeeded', h.delivery_id, m.id, m.topic, h.destination, null,
           h.delivery_id || '.' || h.epoch, h.delivery_id
      from (select * from todoku_history order by message_seq desc limit :most) h
      left join todoku_message m on m.seq = h.message_seq
    union all
    select a.ended_at, case when d.status = 'aborted' and d.epoch = a.epoch + 1 then 'aborted' else 'failed' end,
           a.delivery_id, m.id, m.topic, d.destination, a.reason || coalesce(': ' || a.error, ''),
           a.delivery_id || '.' || a.epoch, a.delivery_id
      from (select * from todoku_attempt order by ended_at desc limit :most) a
      left join todoku_delivery d on d.id = a.delivery_id
      left join todoku_message m on m.seq = d.message_seq
    union all
    select * from (
        select at, action, null, null, null, target, by || ': ' || why, cast(id as text), id
          from todoku_audit order by id desc limit :most)) events
 where at > cast(:since * 1000000 as integer)
 order by at, turn

-- name: count_read
-- Only reads.
select (:now - counted_at) / 1e6, value from todoku_count where name = :name

-- name: count_write
-- The last writer wins: all of them counted the same table.
insert into todoku_count (name, counted_at, value) values (:name, :now, :value)
    on conflict (name) do update set counted_at = excluded.counted_at, value = excluded.value

---------------------------------------------------------------------------------------------------- alerts

-- name: alerts
-- Only reads.
select name, sink, since / 1e6, seen_at / 1e6, next_at / 1e6, told_at / 1e6, ended, tries, value, threshold, :now / 1e6
  from todoku_alert order by name, sink

-- name: begin_alert
-- The primary key decides: an alert that is known is left as it is.
insert into todoku_alert (name, sink, since, seen_at, next_at, told_at, ended, tries, value, threshold)
values (:name, :sink, :since, :seen_at, :next_at, :told_at, :ended, :tries, :value, :threshold)
    on conflict (name, sink) do nothing

-- name: lock_alerts
-- This transaction holds the write lock: what a daemon decides by these rows holds until it commits.
select name, sink, since / 1e6, seen_at / 1e6, next_at / 1e6, told_at / 1e6, ended, tries, value, threshold, :now / 1e6
  from todoku_alert order by name, sink

-- name: write_alert
-- The row was read in this transaction.
update todoku_alert
   set since = :since, seen_at = :seen_at, next_at = :next_at, told_at = :told_at, ended = :ended, tries = :tries,
       value = :value, threshold = :threshold
 where name = :name and sink = :sink

-- name: told_alert
-- Fenced by tries: whoever lost its lease to another changes nothing.
update todoku_alert set told_at = :now, next_at = :now + cast(:remind * 1000000 as integer)
 where name = :name and sink = :sink and tries = :tries

-- name: forget_alert
-- Fenced by tries, as told_alert.
delete from todoku_alert where name = :name and sink = :sink and tries = :tries

-- name: unwanted_dead
-- Only reads: of so many dead letters at both ends of their index, those that nobody wanted dead.
select count(*), (:now - min(updated_at)) / 1e6
  from (select * from (select id, updated_at, reason from todoku_delivery indexed by todoku_delivery_dead
                        where status = 'aborted' order by id limit :most)
        union
        select * from (select id, updated_at, reason from todoku_delivery indexed by todoku_delivery_dead
                        where status = 'aborted' order by id desc limit :most))
 where coalesce(reason, '') not in ('CANCELLED', 'BY_HAND')

---------------------------------------------------------------------------------- invariants (docs/glossary.md)
-- One snapshot for all of them, so that a transaction is seen whole or not at all. Each returns what breaks it.

-- name: verify_acknowledged
-- Only reads. I1: a message has a delivery, unfinished or in the history, unless a person purged it or its time is over.
select 'message ' || m.id from todoku_message m
 where not exists (select 1 from todoku_delivery d where d.message_seq = m.seq)
   and not exists (select 1 from todoku_history h where h.message_seq = m.seq)
   and not exists (select 1 from todoku_audit a where a.target = 'message:' || m.id)
   and m.created_at > :now - cast(:history_ttl * 1000000 as integer)
 limit :most

-- name: verify_message
-- Only reads. I1: what is on its way has a message to bring.
select 'delivery ' || d.id from todoku_delivery d
 where not exists (select 1 from todoku_message m where m.seq = d.message_seq) limit :most

-- name: verify_one_state
-- Only reads. I1: a delivery is unfinished or in the history, never both.
select 'delivery ' || d.id from todoku_delivery d
  join todoku_history h on h.message_seq = d.message_seq and h.delivery_id = d.id limit :most

-- name: verify_finished_once
-- Only reads. I1, I3: a delivery succeeds once.
select 'delivery ' || delivery_id from todoku_history
 group by message_seq, delivery_id having count(*) > 1 limit :most

-- name: verify_reserved
-- Only reads. I2: a key that is still in use was reserved together with its message.
select 'key ' || l.key_hash || ' of ' || l.scope from todoku_ledger l
 where l.scope like 'publish:%' and l.expires_at = 9223372036854775807 and l.message_id is not null
   and not exists (select 1 from todoku_message m where m.id = l.message_id)
 limit :most

-- name: verify_owner
-- Only reads. I3: what runs has an owner, and nothing else has one.
select 'delivery ' || id from todoku_delivery
 where (status = 'sending') <> (worker_id is not null) limit :most

-- name: verify_orphan
-- Only reads. I3: no delivery is left to an owner without a lease; a reclaim frees them within seconds.
select 'delivery ' || d.id from todoku_delivery d
 where d.status = 'sending' and not exists (select 1 from todoku_worker w where w.id = d.worker_id) limit :most

-- name: verify_lane_owner
-- Only reads. I3, I10: what runs of a lane belongs to the worker that has the lane.
select 'delivery ' || d.id from todoku_delivery d
  left join todoku_lane l on l.id = d.lane
 where d.status = 'sending' and d.lane is not null and l.worker_id is not d.worker_id limit :most

-- name: verify_epoch
-- Only reads. I4: the epoch rises with every claim, and past every attempt on record.
select 'delivery ' || d.id from todoku_delivery d
 where d.epoch < d.attempts
    or exists (select 1 from todoku_attempt a where a.delivery_id = d.id and a.epoch >= d.epoch)
 limit :most

-- name: verify_attempts
-- Only reads. I4: nothing is tried more often than it may be.
select 'delivery ' || id from todoku_delivery where attempts > max_attempts limit :most

-- name: verify_token
-- Only reads. I4: a token works once, so no two attempts of a delivery have the same epoch.
select 'delivery ' || delivery_id || ' epoch ' || epoch from todoku_attempt
 group by delivery_id, epoch having count(*) > 1 limit :most

-- name: verify_ledger
-- Only reads. I5: what succeeded with a key is in the ledger as long as keys are remembered.
select 'delivery ' || h.delivery_id from todoku_history h
  join todoku_message m on m.seq = h.message_seq
 where m.key_hash is not null and h.finished_at > :now - cast(:ledger_ttl * 1000000 as integer)
   and not exists (select 1 from todoku_ledger l
                    where l.scope = 'effect:' || h.destination and l.key_hash = m.key_hash
                      and l.state = 'succeeded' and (l.digest = m.digest or h.worker_id is null))
 limit :most

-- name: verify_replays
-- Only reads. I9: a dead letter came back only by replays that somebody signed.
select 'delivery ' || d.id from (
    select id, replay_count from todoku_delivery where replay_count > 0
    union all
    select delivery_id, replay_count from todoku_history where replay_count > 0) d
 where d.replay_count > (select count(*) from todoku_audit a
                          where a.target = 'delivery:' || d.id and a.action = 'replay')
 limit :most

-- name: verify_lane
-- Only reads. I10: what waits in a lane has a lane to be claimed by; without one it would wait for ever.
select 'delivery ' || d.id from todoku_delivery d
 where d.lane is not null and d.status <> 'aborted'
   and not exists (select 1 from todoku_lane l where l.id = d.lane)
 limit :most

-- name: verify_parked
-- Only reads. I10: a lane is parked by a dead letter, which a person can replay or purge.
select 'lane ' || l.id from todoku_lane l
 where l.parked and not exists (
    select 1 from todoku_delivery d
     where d.lane = l.id and d.status = 'aborted' and coalesce(d.reason, '') not in (select value from json_each(:gone)))
 limit :most

-- name: verify_lane_time
-- Only reads. I10: a lane is looked at no later than its first delivery is due.
select 'lane ' || l.id from todoku_lane l
 where l.worker_id is null and not l.parked
   and l.ready_at > :now + 1000000
   and l.ready_at > 1000000 + (select next_run_at from todoku_delivery d
                                where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                                order by d.id limit 1)
 limit :most

-- name: verify_batch
-- Only reads. I1, I3: every member of a batch is counted once, as open, succeeded or aborted.
select 'batch ' || id from todoku_batch
 where open < 0 or succeeded < 0 or aborted < 0 or open + succeeded + aborted <> total limit :most

-- name: verify_batch_due
-- Only reads. I1: what follows a complete batch is published; a maintainer does what could not be done at once.
select 'batch ' || id from todoku_batch where {complete} limit :most

-- name: verify_gate
-- Only reads. I1: what waits at a gate has one, or a call that will make it; without, it would wait for ever.
select 'delivery ' || d.id from todoku_delivery d
 where d.gate is not null and d.status in ('pending', 'failed')
   and not exists (select 1 from todoku_gate g where g.id = d.gate)
   and d.gate not in (select gate from todoku_gate_call)
 limit :most

-- name: verify_gate_running
-- Only reads. A gate knows how many of its deliveries run: more would let too few start, fewer too many.
select 'gate ' || g.id from todoku_gate g
 where g.running <> (select count(*) from todoku_delivery d
                      where d.gate = g.id and d.gate is not null and d.status = 'sending')
 limit :most

-- name: verify_gate_time
-- Only reads. A gate is looked at no later than its first delivery is due and its rate allows.
select 'gate ' || g.id from todoku_gate g
 where g.ready_at > :now + 1000000 and (g.tat is null or g.ready_at > g.tat + 1000000)
   and exists (select 1 from todoku_delivery d
                where d.gate = g.id and d.gate is not null and d.status in ('pending', 'failed') and d.lost = 0
                  and d.next_run_at < g.ready_at - 1000000 and d.expires_at > :now)
   and g.id not in (select gate from todoku_gate_call)
 limit :most

-- name: verify_tried
-- Only reads. What was written before attempts knew their message knows none.
select 'delivery ' || d.id || ' epoch ' || a.epoch from todoku_attempt a cross join todoku_delivery d on d.id = a.delivery_id
 where a.message_seq <> d.message_seq limit :most

-- name: verify_endpoint
-- Only reads.
select 'endpoint ' || e.url from todoku_endpoint e
 where e.group_name is not null and not exists (select 1 from todoku_group g where g.name = e.group_name) limit :most

-- name: verify_clock
-- Only reads. I12: the database's clock decided, so nothing was changed in the future.
select 'delivery ' || id from todoku_delivery
 where updated_at > :now + 5000000 limit :most

------------------------------------------------------------------------------------------- copying

-- name: tables
-- Only reads: every table of todoku with its columns, their types, and their place in the primary key (0: none).
select t.name, c.name, lower(c.type), c.pk
  from sqlite_schema t join pragma_table_xinfo(t.name) c
 where t.type = 'table' and t.name like 'todoku!_%' escape '!' and c.hidden = 0
 order by t.name, c.cid

-- name: leases
-- Only reads: who may be running something now.
select name from todoku_worker where expires_at > :now order by name

-- name: migrated_at
-- Only reads. Microseconds: two databases are hardly ever made in the same one.
select applied_at from todoku_migration order by version

-- name: identities
-- Only reads: the last id given away, of rows that are gone too.
select name, seq from sqlite_sequence where name like 'todoku!_%' escape '!' order by name

-- name: set_identity
-- Only raised, by its caller: an id that was given away never comes again.
delete from sqlite_sequence where name = :name;
insert into sqlite_sequence (name, seq) values (:name, :last)

-- name: history_days
-- Only reads: days since 1970. What lies in the future has no day.
select distinct finished_at / 86400000000 from todoku_history where finished_at <= :now order by 1 desc limit :most

-- name: copy_begun
-- Only reads: the table is there as long as a copy into this database is not finished.
select count(*) from sqlite_schema where type = 'table' and name = 'todoku_copy'

-- name: copy_begin
-- In the transaction that found the database empty, so two copies do not both begin.
create table todoku_copy (name text primary key, done integer not null, origin text not null) strict

-- name: copy_stand
-- Only reads.
select name, done, origin from todoku_copy order by name

-- name: copy_note
-- In the transaction that writes the rows it counts: both are there, or neither.
insert into todoku_copy (name, done, origin) values (:name, :rows, :origin)
    on conflict (name) do update set done = excluded.done

-- name: copy_end
-- In the transaction that has compared both sides.
drop table todoku_copy

-- name: failed_events_there
-- Only reads: the table is the application's, which may have made it itself.
select 1 from sqlite_schema where type = 'table' and name = :bare

-- name: failed_events_lock
-- Only reads: there is one writer at a time.
select 1

-- name: failed_events_create
-- Changes nothing where the table is there already.
create table if not exists failed_webhook_events (
    event_id text primary key,
    payload text not null,
    error text not null,
    created_at text not null,
    message_id text not null,
    dlq_id text not null,
    request text not null,
    rerun_at text,
    rerun_by text,
    rerun_why text) strict

-- name: failed_events_now
-- Only reads the clock that the other queries on this table write.
select strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- name: failed_event_add
-- The event id decides: seen twice is seen. One that was sent again and is among the dead letters at a later look has
-- died again, and is open again. The dead letters of one message are numbered: a hook that was told of an earlier death
-- and runs late leaves the later one.
insert into failed_webhook_events as f (event_id, payload, error, created_at, message_id, dlq_id, request)
values (:event_id, :payload, :error, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), :message_id, :dlq_id, :request)
    on conflict (event_id) do update
   set payload = excluded.payload, error = excluded.error, message_id = excluded.message_id,
       dlq_id = excluded.dlq_id, request = excluded.request, rerun_at = null, rerun_by = null, rerun_why = null
 where (f.dlq_id <> excluded.dlq_id or f.rerun_at < :looked_at)
   and (f.message_id <> excluded.message_id
        or (length(f.dlq_id), f.dlq_id) <= (length(excluded.dlq_id), excluded.dlq_id))
returning 1

-- name: failed_event
-- Only reads.
select event_id, payload, error, created_at, message_id, dlq_id, request, rerun_at, rerun_by, rerun_why
  from failed_webhook_events where event_id = :event_id

-- name: failed_event_rerun
-- Says who sent it again, after it was; who does so twice overwrites the first. One that died anew meanwhile is
-- another dead letter, and stays open.
update failed_webhook_events
   set rerun_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), rerun_by = :rerun_by, rerun_why = :rerun_why
 where event_id = :event_id and dlq_id = :dlq_id
returning 1
