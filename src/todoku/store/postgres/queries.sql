-- The queries of the store on PostgreSQL. `:name` is bound; lists are arrays; `todoku_now()` is the database's clock.
-- Each block: its name, then why it is safe.
-- Plans are pinned by shape (tests/plans): a lateral with a limit, or `offset 0`, keeps a probe a probe, where a join
-- could become a walk over a whole table as soon as statistics are stale.

------------------------------------------------------------------------------------------------ publish
-- These run on the caller's connection, whatever its driver and codecs: each parameter is text, cast as text first.

-- name: publish_reserve
-- Losers of a race wait for the winner and insert nothing; sorted, so that two publishers cannot deadlock.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at)
select scope, key_hash, digest, 'accepted', id, todoku_now(), todoku_now()
  from json_to_recordset(cast(cast(:entries as text) as json)) as s(scope text, key_hash text, digest text, id uuid)
 order by scope, key_hash
    on conflict (scope, key_hash) do nothing

-- name: publish_reserve_for
-- As publish_reserve, but an entry whose time is over is taken over: of two that try, the second finds it renewed.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at, expires_at)
select scope, key_hash, digest, 'accepted', id, todoku_now(), todoku_now(), todoku_now() + lasts * interval '1 second'
  from json_to_recordset(cast(cast(:entries as text) as json))
       as s(scope text, key_hash text, digest text, id uuid, lasts double precision)
 order by scope, key_hash
    on conflict (scope, key_hash) do update
       set digest = excluded.digest, message_id = excluded.message_id, created_at = excluded.created_at,
           updated_at = excluded.updated_at, expires_at = excluded.expires_at, state = excluded.state,
           http_status = null, response = null
     where todoku_ledger.expires_at <= excluded.created_at

-- name: publish_reserved
-- A statement of its own: it sees the winner's row, which the snapshot of the insert did not (H14). A caller's repeatable
-- read may see two rows of a key, its own and one that was pruned since it began: its own goes first.
select l.scope, l.key_hash, l.digest, l.message_id::text, date_part('epoch', coalesce(m.created_at, l.created_at)),
       m.payload::text
  from json_to_recordset(cast(cast(:entries as text) as json)) as s(scope text, key_hash text, id uuid)
 cross join lateral (select * from todoku_ledger
                      where scope = s.scope and key_hash = s.key_hash
                      order by message_id is distinct from s.id limit 1) l
  left join lateral (select payload, created_at from todoku_message where id = l.message_id limit 1) m on true

-- name: publish_unreserve
-- Only what this very publish reserved: the message id is its own.
delete from todoku_ledger l
 using json_to_recordset(cast(cast(:entries as text) as json)) as s(scope text, key_hash text, id uuid)
 where l.scope = s.scope and l.key_hash = s.key_hash and l.message_id = s.id

-- name: publish_lock_destinations
-- Taken before any lane's lock, in key order. Shared: keeps out only a publisher of very many lanes.
select pg_advisory_xact_lock_shared(lock) from unnest(cast(cast(:locks as text) as bigint[])) as s(lock)

-- name: publish_lock_destinations_whole
-- Instead of one lock per lane, of which there are too many for the lock table.
select pg_advisory_xact_lock(lock) from unnest(cast(cast(:locks as text) as bigint[])) as s(lock)

-- name: publish_lock_lanes
-- Held until the caller commits, and ids are drawn after it: so ids of a lane follow commit order (I10).
select pg_advisory_xact_lock(lock) from unnest(cast(cast(:locks as text) as bigint[])) as s(lock)

-- name: publish_lanes
-- The lane's own lock is held: nobody deletes the lane between this insert and the commit.
insert into todoku_lane (id, queue, destination, ready_at)
select distinct on (lane) lane, queue, destination, todoku_now()
  from json_to_recordset(cast(cast(:lanes as text) as json)) as s(lane bigint, queue text, destination text)
 order by lane
    on conflict (id) do nothing

-- name: publish_gate_calls
-- Only appends: no publisher waits for another or for a claim, nor they for him. Who claims heeds what was committed.
insert into todoku_gate_call (queue, destination, gate, key)
select queue, destination, gate, key
  from json_to_recordset(cast(cast(:gates as text) as json)) as s(gate bigint, queue text, destination text, key text)

-- name: publish
-- One statement: a message without its deliveries cannot exist (I1). Times are the statement's (H19).
with draft as materialized (
    select s.*, nextval('todoku_message_seq_seq') as seq
      from json_to_recordset(cast(cast(:messages as text) as json))
           as s(n int, id uuid, topic text, type text, key text, payload json, payload_bytes text,
                content_type text, headers json, labels json, scope text, key_hash text, digest text)
), message as (
    insert into todoku_message (seq, id, topic, type, key, payload, payload_bytes, content_type, headers, labels,
                                scope, key_hash, digest, created_at)
    select seq, id, topic, type, key, case when payload_bytes is null then coalesce(payload, 'null') end,
           decode(payload_bytes, 'base64'), content_type, headers, labels, scope, key_hash, digest, todoku_now()
      from draft
), delivery as (
    insert into todoku_delivery (message_seq, destination, queue, lane, gate, priority, status, max_attempts, timeout,
                                 next_run_at, expires_at, updated_at, reason)
    select draft.seq, s.destination, s.queue, s.lane, s.gate, s.priority,
           case when s.dead is null then 'pending' else 'aborted' end, s.max_attempts, s.timeout,
           coalesce(to_timestamp(s.at), todoku_now()) + make_interval(secs => s.delay),
           coalesce(todoku_now() + make_interval(secs => s.expires), 'infinity'), todoku_now(), s.dead
      from json_to_recordset(cast(cast(:deliveries as text) as json))
           as s(n int, destination text, queue text, lane bigint, gate bigint, priority int, max_attempts int,
                timeout float8, delay float8, at float8, expires float8, dead text)
      join draft using (n)
     order by n
)
-- NOTIFY takes a lock of the whole server at commit, so notice is given only while a worker says that it sleeps.
select date_part('epoch', todoku_now()),
       (select count(pg_notify('todoku', ''))
          from (select from todoku_worker
                 where cast(:notify as boolean) and state = 'idle' and expires_at > todoku_now() limit 1) idle)

-- name: publish_reopen
-- Only what is `aborted` changes, under its row lock: of two publishers one reopens, with its audit row (H15).
with dead as materialized (
    select d.id, d.destination, d.lane, d.gate, d.queue, m.key, m.key_hash, m.digest
      from todoku_message m join todoku_delivery d on d.message_seq = m.seq
     where m.id = any (cast(cast(:message_ids as text) as uuid[])) and d.status = 'aborted'
     order by d.id for update of d
), reopened as (
    update todoku_delivery d
       set status = 'pending', epoch = epoch + 1, attempts = 0, lost = least(lost, 1), snoozes = 0,
           replay_count = replay_count + 1, reason = null, error = null, cancel_requested = false,
           next_run_at = todoku_now(), expires_at = 'infinity', updated_at = todoku_now()
      from dead where d.id = dead.id
    returning d.id
), entry as (
    update todoku_ledger l set state = 'accepted', updated_at = todoku_now(), expires_at = 'infinity'
      from dead where l.scope = 'effect:' || dead.destination and l.key_hash = dead.key_hash
       and l.digest = dead.digest and l.state = 'failed'
), lane as (
    insert into todoku_lane (id, queue, destination, ready_at)
    select distinct on (lane) lane, queue, destination, todoku_now() from dead where lane is not null order by lane
        on conflict (id) do update set parked = false, ready_at = excluded.ready_at
), call as (
    insert into todoku_gate_call (queue, destination, gate, key)
    select queue, destination, gate, key from dead where gate is not null
)
insert into todoku_audit (at, by, action, target, why)
select todoku_now(), 'publisher', 'replay', 'delivery:' || id, 'published again with the same key' from reopened

-- name: once_found
-- A statement of its own: it sees the winner's row, which the snapshot of the insert did not (H14).
select digest, state, message_id::text, http_status, response::text, date_part('epoch', created_at)
  from todoku_ledger where scope = cast(:scope as text) and key_hash = cast(:key_hash as text)

-- name: once_record
-- Only by whoever reserved the key: the token is his own.
update todoku_ledger
   set state = cast(:state as text), http_status = cast(cast(:status as text) as integer),
       response = cast(cast(:response as text) as json), updated_at = todoku_now(),
       expires_at = todoku_now() + make_interval(secs => cast(cast(:lasts as text) as float8))
 where scope = cast(:scope as text) and key_hash = cast(:key_hash as text)
   and message_id = cast(cast(:token as text) as uuid)
returning 1

-- name: once_conclude
-- Only what waits for its end: what has succeeded or failed stays as it is, and of two that tell, one does.
update todoku_ledger
   set state = cast(:state as text), http_status = cast(cast(:status as text) as integer),
       response = cast(cast(:response as text) as json), updated_at = todoku_now(),
       expires_at = todoku_now() + make_interval(secs => cast(cast(:lasts as text) as float8))
 where scope = cast(:scope as text) and key_hash = cast(:key_hash as text) and state = 'accepted'
returning 1

-- name: inbox_once
-- The primary key decides; whoever comes second waits for the first one's commit and inserts nothing.
insert into todoku_inbox (consumer, message_id, seen_at)
values (cast(:consumer as text), cast(cast(:message_id as text) as uuid), todoku_now())
    on conflict do nothing
returning 1

-- name: inbox_newer
-- The row's lock puts those of one key in a row; each compares with what the one before it has left.
insert into todoku_inbox_sequence as s (consumer, key, sequence, seen_at)
values (cast(:consumer as text), cast(:key as text), cast(cast(:sequence as text) as bigint), todoku_now())
    on conflict (consumer, key) do update set sequence = excluded.sequence, seen_at = excluded.seen_at
 where s.sequence < excluded.sequence
returning 1

-- name: savepoint_open
-- Changes nothing; on SQLite it makes sure that there is a transaction for the savepoint to be in.
select 1

-- name: savepoint
-- Only this name is undone or closed, so it may be nested in the caller's own.
savepoint todoku_best_effort

-- name: savepoint_undo
-- Undoes what todoku did since, and nothing of the caller's; possible in a transaction that has failed.
rollback to savepoint todoku_best_effort

-- name: savepoint_close
-- The caller's transaction goes on; nothing is committed by this.
release savepoint todoku_best_effort

-------------------------------------------------------------------------------------------- the lease

-- name: register
-- The id is random per incarnation: it cannot meet an older one (H5).
insert into todoku_worker (id, name, started_at, expires_at)
values (:worker, :name, todoku_now(), todoku_now() + make_interval(secs => :lease))

-- name: renew
-- A lease that ended is never renewed (H1): 0 rows means everything held is lost. The state is left alone: the claimer
-- writes it, and a heartbeat that wrote what it had read before would undo "idle", so publishers would give no notice.
update todoku_worker set expires_at = todoku_now() + make_interval(secs => :lease)
 where id = :worker and expires_at > todoku_now()
returning id

-- name: set_state
-- Says what a live worker does; its lease is not touched, so a lease that ended stays ended (H1).
update todoku_worker set state = :state where id = :worker and expires_at > todoku_now()

-- name: owned
-- Reads the small index of rows in flight.
select id, epoch, cancel_requested, lane, gate from todoku_delivery where worker_id = :worker and status = 'sending'

-- name: bury_expired
-- The row's lock decides against a renewal (H1). Who holds his own row, stopped in the middle of a renewal or a claim, is
-- passed over and buried in a later round: nobody waits for a dead worker to bury another.
delete from todoku_worker
 where id = any (array(select id from todoku_worker where expires_at <= todoku_now() for update skip locked))
returning id

-- name: bury
-- Ends one lease at once: the last act of a drain, or of a supervisor whose child died.
delete from todoku_worker where id = :worker returning id

-- name: lock_owned
-- Waits: a claim that saw these rows free may have locked them in passing, and free_orphans passes over locked rows.
select from todoku_delivery where worker_id = :worker and status = 'sending' for update

-- name: lock_owned_lanes
-- As lock_owned, for free_lanes.
select from todoku_lane where worker_id = :worker for update

-- name: free_orphans
-- An anti-join: rows whose owner has no worker row at all are found too (H2). Aborted, at the limit or because it was
-- cancelled, only if the ledger does not know of a success (H13). The attempt is given back, the loss is counted
-- apart (H6). In no order: it
-- never waits for a lock, and an order would make the planner walk the whole table by id. Locked only if the epoch
-- is still the one seen: since then somebody else may have freed the row and a live worker claimed it (H7).
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
       cancel_requested = false, next_run_at = todoku_now(), updated_at = todoku_now()
  from held
 where d.id = any (array(select id from held)) and d.id = held.id
returning d.id, d.status, d.epoch - 1, d.attempts + 1, d.replay_count,
          case when d.reason = 'CANCELLED' then null else d.lane end, d.gate

-- name: record_lost
-- Append-only; one row per owner that died under a delivery.
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

-- name: skips
-- A fragment: dead letters do not block the lane: its destination says so, or is a host, where a queue always goes on.
-- By `offset 0` the destination is looked up by its name, and never are all that skip read into a hash first.
(strpos(l.destination, '://') > 0
    or exists (select from todoku_destination b where b.name = l.destination and b.on_abort = 'skip' offset 0))

------------------------------------------------------------------------------------------- the line

-- name: served
-- A fragment: somebody who serves these destinations (null: all) serves this one; a scheme stands for every host.
(:destinations::text[] is null or destination = any (:destinations::text[])
    or left(destination, strpos(destination || '://', '://') + 2) = any (:destinations::text[]))

-- name: waiting
-- Only reads. Hops from one (queue, destination, priority) to the next in the index, however many rows each has.
with recursive groups as (
    (select queue, destination, priority from todoku_delivery
      where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
      order by queue, destination, priority limit 1)
    union all
    select later.* from groups g cross join lateral (
        select queue, destination, priority from todoku_delivery d
         where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and (d.queue, d.destination, d.priority) > (g.queue, g.destination, g.priority)
         order by queue, destination, priority limit 1) later
)
select queue, destination, priority from groups
 where {served}

-- name: waiting_suspects
-- Only reads; as `waiting`, over the rows whose owner died.
with recursive groups as (
    (select queue, destination from todoku_delivery
      where status in ('pending', 'failed') and lane is null and lost > 0
      order by queue, destination limit 1)
    union all
    select later.* from groups g cross join lateral (
        select queue, destination from todoku_delivery d
         where status in ('pending', 'failed') and lane is null and lost > 0
           and (d.queue, d.destination) > (g.queue, g.destination)
         order by queue, destination limit 1) later
)
select queue, destination from groups
 where {served}

-- name: waiting_lanes
-- Only reads; as `waiting`, over lanes.
with recursive groups as (
    (select queue, destination from todoku_lane where worker_id is null and not parked
      order by queue, destination limit 1)
    union all
    select later.* from groups g cross join lateral (
        select queue, destination from todoku_lane l
         where worker_id is null and not parked and (l.queue, l.destination) > (g.queue, g.destination)
         order by queue, destination limit 1) later
)
select queue, destination from groups
 where {served}

-- name: waiting_gates
-- Only reads; as `waiting`, over gates that are not full and over calls nobody has heeded yet. With the seconds until
-- the first gate of each place is to be looked at.
with recursive groups as (
    (select queue, destination, ready_at from todoku_gate where {able}
      order by queue, destination, ready_at limit 1)
    union all
    select later.* from groups g cross join lateral (
        select queue, destination, ready_at from todoku_gate l
         where {able} and (l.queue, l.destination) > (g.queue, g.destination)
         order by queue, destination, ready_at limit 1) later
), called as (
    (select queue, destination from todoku_gate_call order by queue, destination limit 1)
    union all
    select later.* from called g cross join lateral (
        select queue, destination from todoku_gate_call l
         where (l.queue, l.destination) > (g.queue, g.destination)
         order by queue, destination limit 1) later
)
select queue, destination, date_part('epoch', ready_at - todoku_now()) from groups
 where {served}
union all
select queue, destination, 0 from called
 where {served}

-- name: claim
-- Rows are locked before they change, in a materialized CTE, so never more than asked for. Then the worker row is
-- held FOR KEY SHARE: a buried worker claims nothing, and a burial waits for this commit (H2). Nothing due, nothing
-- locked: an idle poll writes nothing and waits for no disk.
with slice as materialized (
    select s.* from unnest(:queues::text[], :destinations::text[], :priorities::smallint[],
                          :after_ats::float8[], :after_ids::bigint[], :mosts::int[])
           with ordinality as s(queue, destination, priority, after_at, after_id, most, place)
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     order by place
), due as materialized (
    select d.id from slice s cross join lateral (
        select id from todoku_delivery
         where queue = s.queue and destination = s.destination and priority = s.priority
           and status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and next_run_at <= todoku_now() and (next_run_at, id) > (to_timestamp(s.after_at), s.after_id)
           and expires_at > todoku_now()
         order by next_run_at, id limit s.most for update skip locked) d
     limit :most
), {me}, {taken}
select {claimed}

-- name: claim_suspect
-- As claim, for one row whose owner died: alone, so that if it kills this worker too it takes nobody along (H6).
with due as materialized (
    select d.id from json_to_recordset(:places::json) as s(queue text, destination text)
      cross join lateral (
        select id from todoku_delivery
         where queue = s.queue and destination = s.destination
           and status in ('pending', 'failed') and lane is null and lost > 0
           and (gate is null or gate = any (:gates::bigint[]))
           and next_run_at <= todoku_now() and expires_at > todoku_now()
         order by next_run_at, id limit 1 for update skip locked) d
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     limit 1
), {me}, {taken}
select {claimed}

-- name: take_lanes
-- As claim, for lanes: SKIP LOCKED between workers, owner and epoch set in the same statement.
with due as materialized (
    select l.id from json_to_recordset(:places::json) as s(queue text, destination text)
      cross join lateral (
        select id from todoku_lane
         where queue = s.queue and destination = s.destination
           and worker_id is null and not parked and ready_at <= todoku_now()
         order by ready_at, id limit :lanes for update skip locked) l
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     limit :lanes
), {me}
update todoku_lane set worker_id = :worker, epoch = epoch + 1
 where id = any (array(select id from due)) and exists (select from me)
returning id, failures

-- name: claim_lane_rows
-- The lanes are ours. Rows are taken in id order up to the first that may not run yet: it blocks the rest (I10).
-- What somebody else is changing counts as such a row: it is neither overtaken nor waited for, since its cancellation
-- may be waiting for this lane (H11). A row whose owner died comes alone, once it has waited longest (H6).
with head as materialized (
    select s.lane, d.id, h.lost, h.next_run_at, coalesce(h.runs, false) as runs
      from json_each_text(:mosts::json) as s(lane, most)
     cross join lateral (
        select id from todoku_delivery
         where lane = s.lane::bigint and status <> 'aborted' order by id limit s.most::int) d
      left join lateral (
        select lost, next_run_at,
               status <> 'sending' and next_run_at <= todoku_now() and expires_at > todoku_now() as runs
          from todoku_delivery where id = d.id and status <> 'aborted' limit 1 for update skip locked) h on true
), next as materialized (
    select id, lost, next_run_at from (
        select *, bool_and(runs) over w and (row_number() over w = 1 or max(lost) over w = 0) as able
          from head window w as (partition by lane order by id)) h where able
), due as materialized (
    select id from next
     where case when (select lost > 0 from next order by next_run_at, id limit 1)
                then id = (select id from next order by next_run_at, id limit 1) else lost = 0 end
), {me}, {taken}
select {claimed}

-- name: me
-- A fragment: the worker's live row, locked against its burial, if there is anything to take.
me as materialized (
    select id from todoku_worker
     where id = :worker and expires_at > todoku_now() and exists (select from due) for key share
)

-- name: taken
-- A fragment: what a claim does to its rows.
taken as (
    update todoku_delivery d
       set status = 'sending', worker_id = :worker, claimed_at = todoku_now(), updated_at = todoku_now(),
           attempts = attempts + 1, epoch = epoch + 1
     where id = any (array(select id from due)) and exists (select from me)
    returning d.id, d.epoch, d.message_seq, d.destination, d.queue, d.priority, d.lane, d.gate, d.attempts,
              d.max_attempts, d.lost, d.snoozes, d.replay_count, d.next_run_at, d.expires_at, d.timeout
)

-- name: claimed
-- A fragment, not a query: what every claim returns. Each row finds its message and effect entry by primary key.
t.id, t.epoch, t.message_seq, m.id::text, m.topic, m.key, m.payload::text, m.payload_bytes,
       m.content_type, m.headers::text, t.destination, t.queue, t.priority, t.lane, t.gate, t.attempts,
       t.max_attempts, t.lost, t.snoozes, t.replay_count, date_part('epoch', t.next_run_at),
       date_part('epoch', m.created_at),
       case when t.expires_at < 'infinity' then date_part('epoch', t.expires_at) end, t.timeout,
       m.key_hash, m.digest, e.state, e.digest
  from taken t
  left join lateral (select * from todoku_message m where m.seq = t.message_seq limit 1) m on true
  left join lateral (select state, digest from todoku_ledger l
                      where l.scope = 'effect:' || t.destination and l.key_hash = m.key_hash limit 1) e on true
 order by t.priority desc, t.next_run_at, t.id

------------------------------------------------------------------------------------ limits and gates

-- name: rooms
-- Only reads: how many more the limits in force let start, by their rate and at once. What is in flight is counted in
-- its small index, no further than the limit.
select 'queue', name, {allowed}, most - (select count(*) from (
           select from todoku_delivery d where d.status = 'sending' and d.queue = l.name limit l.most) f)
  from (select name, "limit" as most, rate, tat from todoku_queue
         where name = any (:queues::text[]) and {counts}) l
union all
select 'destination', name, {allowed}, most - (select count(*) from (
           select from todoku_delivery d where d.status = 'sending' and d.destination = l.name limit l.most) f)
  from (select name, "limit" as most, rate, tat from todoku_destination
         where name = any (:destinations::text[]) and {counts}) l

-- name: allowed
-- A fragment: how many a rate lets start now. What was not used is kept for a moment, so that a poll that comes late
-- loses nothing.
case when rate is null then null when tat > todoku_now() then 0
     else 1 + floor(least(date_part('epoch', todoku_now() - {credit}) * rate, 1e6))::int end

-- name: credit
-- A fragment: from when on starts that were not used are kept.
greatest(tat, todoku_now() - interval '100 milliseconds')

-- name: lock_limits
-- A statement of its own: the next one counts what others committed before it had these locks, and until the commit
-- nobody else counts. Queues before destinations, each sorted: no deadlock (H11).
with q as materialized (
    select name from todoku_queue where name = any (:queues::text[]) order by name for update
), d as materialized (
    select name from todoku_destination where name = any (:destinations::text[]) order by name for update
)
select (select count(*) from q), (select count(*) from d)

-- name: spend_rates
-- The rows are locked by this transaction, which has claimed so many of each.
with q as (
    update todoku_queue l set tat = {credit} + make_interval(secs => s.number::float8 / l.rate)
      from json_each_text(:queues::json) as s(name, number) where l.name = s.name and l.rate is not null
)
update todoku_destination l set tat = {credit} + make_interval(secs => s.number::float8 / l.rate)
  from json_each_text(:destinations::json) as s(name, number) where l.name = s.name and l.rate is not null

-- name: heed_calls
-- Who committed a call committed its delivery too: whoever looks at the gate after this sees it. A call somebody else
-- is heeding is his. In no order: all of them are heeded, and an order would make the planner walk those of others.
with call as materialized (
    select c.id from json_to_recordset(:places::json) as s(queue text, destination text)
     cross join lateral (
        select id from todoku_gate_call where queue = s.queue and destination = s.destination
         limit :most for update skip locked) c
), heeded as (
    delete from todoku_gate_call where id = any (array(select id from call)) returning *
)
select distinct on (gate) gate, queue, destination, key from heeded order by gate, id desc

-- name: open_gates
-- Locks the gates there are, in order (H11). Those there are not are made; what is waiting is looked at next.
insert into todoku_gate (id, queue, destination, key, ready_at)
select gate, queue, destination, key, todoku_now()
  from json_to_recordset(:gates::json) as s(gate bigint, queue text, destination text, key text)
 order by gate
    on conflict (id) do update set queue = excluded.queue

-- name: lock_gates
-- A statement of its own: the next one sees what others did to these gates before it had the locks. Sorted (H11).
select id, ("limit" is null or running < "limit") and (rate is null or tat is null or tat <= todoku_now())
  from todoku_gate where id = any (:gates::bigint[]) order by id for update

-- name: priorities
-- A fragment: one probe of the index for each, so that what is due is found past any number that is not.
unnest(array[15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]::smallint[]) as p(priority)

-- name: able
-- A fragment: the gate is not full, and something of it waits.
("limit" is null or running < "limit") and ready_at < 'infinity'

-- name: take_gates
-- SKIP LOCKED between workers; full gates and those where nothing waits are not in the index. The limit is that of who
-- claims: a change of it holds from the first claim on. What is taken goes to the end of the line.
with due as materialized (
    select g.id, g.running, g.tat, s.concurrency, s.rate
      from json_to_recordset(:places::json)
           as s(queue text, destination text, concurrency int, rate float8)
     cross join lateral (
        select id, running, tat from todoku_gate
         where queue = s.queue and destination = s.destination and {able} and ready_at <= todoku_now()
         order by ready_at, id limit :gates for update skip locked) g
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     limit :gates
), taken as (
    update todoku_gate g set "limit" = due.concurrency, rate = due.rate, ready_at = todoku_now()
      from due where g.id = any (array(select id from due)) and g.id = due.id
)
select id, rate, least(coalesce(concurrency - running, 1000000), coalesce({allowed}, 1000000)) from due

-- name: claim_gate_rows
-- The gates are locked by this transaction, and counted: of each as many as its limit leaves, larger priorities first.
with due as materialized (
    select d.id from json_each_text(:mosts::json) as s(gate, most)
     cross join lateral (
        select r.id from {priorities}
         cross join lateral (
            select id from todoku_delivery
             where gate = s.gate::bigint and priority = p.priority and status in ('pending', 'failed') and lost = 0
               and next_run_at <= todoku_now() and expires_at > todoku_now()
             order by next_run_at, id limit s.most::int for update skip locked) r
         limit s.most::int) d
), {me}, {taken}
select {claimed}

-- name: suspect_gates
-- Only reads: the gates of due rows whose owner died, of which there are few.
select distinct d.gate from json_to_recordset(:places::json) as s(queue text, destination text)
 cross join lateral (
    select gate from todoku_delivery
     where queue = s.queue and destination = s.destination
       and status in ('pending', 'failed') and lane is null and lost > 0 and gate is not null
       and next_run_at <= todoku_now() and expires_at > todoku_now()
     order by next_run_at, id limit 100) d

-- name: spend_gates
-- The gates are locked by this transaction, which has claimed so many of each.
update todoku_gate g set tat = {credit} + make_interval(secs => s.number::float8 / g.rate)
  from json_each_text(:spent::json) as s(gate, number)
 where g.id = any (array(select gate::bigint from json_object_keys(:spent::json) as k(gate)))
   and g.id = s.gate::bigint and g.rate is not null

-- name: refresh_gates
-- Under the locks of the gates: what runs is counted, so that nothing that was forgotten is kept for ever. What is due
-- keeps the gate's place in the line; a rate keeps it waiting, and an empty gate until its rate has nothing to tell.
update todoku_gate g
   set running = n.running,
       ready_at = greatest(
           case when n.next_run_at <= todoku_now() then least(g.ready_at, todoku_now())
                when n.next_run_at is not null then n.next_run_at
                when n.running = 0 and g.tat > todoku_now() - interval '100 milliseconds'
                then g.tat + interval '100 milliseconds'
                else 'infinity' end,
           case when g.rate is not null then g.tat end)
  from unnest(:gates::bigint[]) as s(gate)
 cross join lateral (
    select (select count(*) from todoku_delivery d where d.gate = s.gate and d.status = 'sending') as running,
           (select min(d.next_run_at) from {priorities}
             cross join lateral (
                select next_run_at from todoku_delivery
                 where gate = s.gate and priority = p.priority and status in ('pending', 'failed') and lost = 0
                   and expires_at > todoku_now()
                 order by next_run_at, id limit 1) d) as next_run_at) n
 where g.id = any (:gates::bigint[]) and g.id = s.gate
returning g.id, g.running = 0 and g.ready_at = 'infinity'

-- name: drop_gates
-- Under the locks of the gates. Nothing runs and nothing waits that this statement can see; what is committed later
-- comes with a call, and the call makes the gate again.
delete from todoku_gate g
 where g.id = any (:gates::bigint[]) and g.running = 0 and g.ready_at = 'infinity'
   and not exists (select from todoku_delivery d
                    where d.gate = g.id and d.status in ('pending', 'failed') offset 0)

-- name: mark_inbox
-- Written in the transaction of the handler's own writes, right before the settle: it never waits for long (H21), and
-- the fenced settle behind it is the proof; seen twice is seen.
insert into todoku_inbox (consumer, message_id, seen_at) values (:consumer, :message_id::uuid, todoku_now())
    on conflict do nothing

-- name: effects
-- Only reads, just before a send that may be a repetition (H13).
select s.id, l.state, l.digest
  from json_to_recordset(:entries::json) as s(id bigint, scope text, key_hash text)
 cross join lateral (select state, digest from todoku_ledger
                      where scope = s.scope and key_hash = s.key_hash limit 1) l

-- name: settle_effects
-- A true success is recorded even by a stale worker (I7), a failure only by the owner. The first success stays, and
-- lives 48 hours after the last (H16); another digest never overwrites it (I5), but a success does overwrite what is
-- none, whosever it is: it must be in the ledger. Sorted by key: no deadlock (H11). The row of a failure is locked, so
-- that nobody frees it between this and its own change.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, http_status, response, created_at,
                           updated_at, expires_at)
select distinct on (s.scope, s.key_hash)
       s.scope, s.key_hash, s.digest, s.state, s.message_id, case s.state when 'succeeded' then 200 end,
       s.response::json, todoku_now(), todoku_now(), todoku_now() + make_interval(secs => :ttl)
  from json_to_recordset(:entries::json)
       as s(scope text, key_hash text, digest text, state text, message_id uuid, response text, id bigint,
            epoch bigint)
  left join lateral (
    select id from todoku_delivery d
     where s.state = 'failed' and d.id = s.id and d.epoch = s.epoch and d.worker_id = :worker
     limit 1 for update) held on true
 where s.state = 'succeeded' or held.id is not null
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
-- The publish entry lives as long after its last success as the effect entry (H16). Locked in key order. Each row is
-- there, so each insert is an update: found by its key, where the join of an update could walk the whole ledger.
insert into todoku_ledger
select l.* from (
    select distinct scope, key_hash from json_to_recordset(:entries::json) as s(scope text, key_hash text)
     order by scope, key_hash) s
 cross join lateral (select * from todoku_ledger
                      where scope = s.scope and key_hash = s.key_hash limit 1 for update) l
    on conflict (scope, key_hash) do update set expires_at = todoku_now() + make_interval(secs => :ttl)

-- name: settle_done
-- Fenced by (id, epoch, worker) and nothing else: a `status` term makes the planner take the wrong index. The delete
-- is the lock: it walks the primary key by id, so rows are locked in order, and looks at what it waited for again.
-- Ids are sorted and none comes twice, so an id has its epoch at its place among them. Returns the tokens that were
-- not ours.
with token as materialized (
    select id::bigint, epoch::bigint from json_each_text(:tokens::json) as s(id, epoch) order by 1
), gone as (
    delete from todoku_delivery
     where id = any (array(select id from token)) and worker_id = :worker
       and epoch = (array(select epoch from token))[width_bucket(id, array(select id from token))]
    returning id, epoch, message_seq, destination, queue, attempts, replay_count
), done as (
    insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                                replay_count, worker_id)
    select todoku_now(), id, epoch, message_seq, destination, queue, attempts, replay_count, :worker from gone
)
select id from token where (select count(*) from gone) < :number and id <> all (array(select id from gone))

-- name: settle_rest
-- Fenced like settle_done. The failed attempt is written with its epoch in the statement (H4), and the max_attempts that
-- the worker went by. Returns the tokens that were not ours, and what would run again but was cancelled meanwhile.
with held as materialized (
    select s.*, d.attempts, d.replay_count, d.claimed_at, d.cancel_requested, d.message_seq
      from json_to_recordset(:rows::json)
           as s(id bigint, epoch bigint, status text, delay float8, reason text, error text, snoozed int,
                max_attempts int, response json)
     cross join lateral (
        select attempts, replay_count, claimed_at, cancel_requested, message_seq from todoku_delivery
         where id = s.id and epoch = s.epoch and worker_id = :worker limit 1 for update) d
), changed as (
    update todoku_delivery d
       set status = case when d.cancel_requested then 'aborted' else held.status end,
           reason = case when d.cancel_requested and held.status <> 'aborted' then 'CANCELLED' else held.reason end,
           error = case when d.cancel_requested and held.status <> 'aborted' then {cancelled} else held.error end,
           epoch = d.epoch + 1, worker_id = null, cancel_requested = false, updated_at = todoku_now(),
           attempts = d.attempts - held.snoozed, snoozes = d.snoozes + held.snoozed,
           max_attempts = held.max_attempts,
           next_run_at = todoku_now() + make_interval(secs => held.delay)
      from held where d.id = any (array(select id from held)) and d.id = held.id
), attempt as (
    insert into todoku_attempt (delivery_id, replay, number, epoch, started_at, ended_at, reason, error, worker_id,
                                response_status, response, message_seq)
    select id, replay_count, attempts, epoch, claimed_at, todoku_now(), reason, error, :worker,
           (response ->> 'status')::int, response, message_seq
      from held where status <> 'pending'
)
select s.id, false from json_to_recordset(:rows::json) as s(id bigint) where s.id <> all (array(select id from held))
union all
select id, true from held where cancel_requested and status <> 'aborted'

-- name: cancelled
-- A fragment: a cancellation that its owner did not see, or did not live to obey, outlives it (H22).
'cancelled while it ran'

-- name: settle_results
-- The delivery was settled by us in this transaction.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select delivery_id, message_seq, result::json, todoku_now()
  from json_to_recordset(:rows::json) as s(delivery_id bigint, message_seq bigint, result text)
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: lock_lanes
-- A statement of its own: the next one sees what people did to these lanes before it had the locks. Sorted (H11).
select from todoku_lane where id = any (:lanes::bigint[]) order by id for update

-- name: settle_lanes
-- The lanes are ours until this statement gives them back, which it does once nothing of theirs is in flight.
-- The next row's time is the lane's; without one it is looked at again in 20 ms, or dropped by the next statement.
-- What is in flight is read once, from the small index of owned rows: a lane may have a hundred thousand followers.
with flying as materialized (
    select distinct lane from (
        select lane from todoku_delivery where worker_id = :worker and status = 'sending' offset 0) owned
     where lane = any (:lanes::bigint[])
)
update todoku_lane l
   set failures = case when l.id = any (:failing::bigint[]) then l.failures + 1
                       when l.id = any (:succeeding::bigint[]) then 0 else l.failures end,
       parked = l.parked or (l.id = any (:aborting::bigint[]) and not {skips}),
       worker_id = case when busy then l.worker_id end,
       epoch = l.epoch + (not busy)::int,
       ready_at = coalesce(head.next_run_at, todoku_now() + interval '20 milliseconds')
  from unnest(:lanes::bigint[]) as s(lane)
  left join lateral (select next_run_at from todoku_delivery d
                      where d.lane = s.lane and d.status <> 'aborted' order by d.id limit 1) head on true
 cross join lateral (select s.lane = any (array(select lane from flying)) as busy) b
 where l.id = s.lane and l.id = any (:lanes::bigint[]) and l.worker_id = :worker
returning l.id, l.destination, head.next_run_at is null and not l.parked and not busy

-- name: try_lock_lanes
-- Tries, never waits: a lock not had is a publisher in flight, and the lane stays (§4 Order).
select lane::bigint from json_each_text(:locks::json) as s(lane, destination_lock)
 where pg_try_advisory_xact_lock_shared(destination_lock::bigint)
   and pg_try_advisory_xact_lock(lane::bigint)

-- name: drop_empty_lanes
-- The lanes' locks are held and this statement's snapshot is younger than they are: no row can come in between.
with empty as materialized (
    select l.id from unnest(:lanes::bigint[]) as s(lane)
     cross join lateral (select id, worker_id, parked from todoku_lane where id = s.lane limit 1 for update) l
     where l.worker_id is null and not l.parked
       and not exists (select from todoku_delivery d where d.lane = s.lane and d.status <> 'aborted')
)
delete from todoku_lane where id = any (array(select id from empty))

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
-- Fenced; the attempt never started, so it is given back (I4). A token works once: repeated, it changes nothing.
with held as materialized (
    select d.id from json_each_text(:tokens::json) as s(id, epoch)
     cross join lateral (
        select id from todoku_delivery
         where id = s.id::bigint and epoch = s.epoch::bigint and worker_id = :worker limit 1 for update) d
)
update todoku_delivery d
   set status = case when cancel_requested then 'aborted' else 'pending' end,
       reason = case when cancel_requested then 'CANCELLED' else d.reason end,
       error = case when cancel_requested then {cancelled} else d.error end,
       epoch = d.epoch + 1, worker_id = null, attempts = d.attempts - 1,
       cancel_requested = false, updated_at = todoku_now(),
       next_run_at = case when :delay > 0 then todoku_now() + make_interval(secs => :delay) else d.next_run_at end
 where d.id = any (array(select id from held))
returning d.id, d.status

---------------------------------------------------------------------------------- what follows an end
-- In the transaction that ends deliveries, as its last statements: deliveries, lanes, then these (H11).

-- name: over
-- Only reads rows that this transaction has locked and changed, or is about to.
select d.id, m.id::text, m.topic, m.key, d.destination, d.queue, m.headers::text, d.status, d.reason, d.error,
       d.attempts, d.replay_count
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_delivery where id = s.id limit 1) d
 cross join lateral (select id, topic, key, headers from todoku_message where seq = d.message_seq limit 1) m
 order by d.id

-- name: callback_sources
-- Only reads: messages of deliveries that this transaction has ended, and the last answer each of them had.
select s.delivery, m.payload::text, m.payload_bytes, m.content_type, date_part('epoch', m.created_at), a.response::text
  from json_to_recordset(:rows::json) as s(message uuid, delivery bigint)
 cross join lateral (select * from todoku_message where id = s.message limit 1) m
  left join lateral (select response from todoku_attempt
                      where delivery_id = s.delivery and response is not null order by epoch desc limit 1) a on true

-- name: hooks
-- Only reads: those that were announced at most so long before the newest announcement of anything. While nobody works
-- nothing is announced, and nothing is forgotten.
select h.name, h.event, h.queue, h.max_attempts, h.timeout, h.topic, h.destination, h.from_queue from todoku_hook h
 where h.seen_at > (select max(seen_at) from ({announcements}) a) - make_interval(secs => :forgotten_after)
 order by h.name, h.event

-- name: announcements
-- A fragment: when anything was announced.
select max(seen_at) as seen_at from todoku_destination union all select max(seen_at) from todoku_hook

-- name: announce_hooks
-- The last who announces a hook says what it hears. Sorted, so that two who announce cannot deadlock.
insert into todoku_hook (name, event, queue, max_attempts, timeout, topic, destination, from_queue, seen_at)
select name, event, queue, max_attempts, timeout, topic, destination, from_queue, todoku_now()
  from json_to_recordset(:hooks::json)
       as s(name text, event text, queue text, max_attempts int, timeout float8, topic text, destination text,
            from_queue text)
 order by name, event
    on conflict (name, event) do update
       set queue = excluded.queue, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
           topic = excluded.topic, destination = excluded.destination, from_queue = excluded.from_queue,
           seen_at = excluded.seen_at

-- name: publish_batch
-- Its members are published in the same transaction. Without members there is nothing to wait for.
insert into todoku_batch (id, total, open, "on", next, created_at, done_at)
select id, total, total, "on", next, todoku_now(), case total when 0 then todoku_now() end
  from json_to_recordset(cast(cast(:batches as text) as json)) as s(id uuid, total int, "on" text, next json)

-- name: complete
-- A fragment: nothing is left to wait for, and what follows is not published yet.
(done_at is null and open = 0 and ("on" = 'finished' or aborted = 0))

-- name: lock_batches
-- Sorted (H11), and a statement of its own: the next one sees what others have counted before it had the locks.
select from todoku_batch where id = any (:ids::text[]::uuid[]) order by id for update

-- name: count_batches
-- The rows are locked, of each batch once. Only an end that happened in this transaction is counted, and a token ends
-- once (I3).
update todoku_batch b
   set open = b.open - s.ended, succeeded = b.succeeded + s.succeeded, aborted = b.aborted + s.aborted
  from json_to_recordset(:counts::json) as s(id uuid, ended int, succeeded int, aborted int)
 where b.id = s.id and b.id = any (array(select id from json_to_recordset(:counts::json) as c(id uuid)))
returning b.id::text, done_at is null and b.open = 0 and ("on" = 'finished' or b.aborted = 0), next::text

-- name: finish_batches
-- The rows are locked and what follows was published in this transaction; whoever comes second finds it done.
update todoku_batch set done_at = todoku_now(), next = null
 where id = any (:ids::text[]::uuid[]) and done_at is null

-- name: due_batches
-- Only reads: the small index of those whose next could not be published with the end of their last member.
select id::text from todoku_batch where {complete} order by id limit :most

-- name: take_batch
-- Locked, so that one publishes what follows; whoever else is at it is passed over.
select next::text from todoku_batch where id = :id::uuid and {complete} for update skip locked

-- name: give_up_batches
-- A member that has to succeed was removed for good: nothing will ever follow.
update todoku_batch set done_at = todoku_now(), next = null
 where id = any (:ids::text[]::uuid[]) and done_at is null and "on" = 'succeeded'

-- name: batch
-- Only reads.
select id::text, "on", total, open, succeeded, aborted, date_part('epoch', created_at), date_part('epoch', done_at)
  from todoku_batch where id = :id::uuid

--------------------------------------------------------------------------------- what a person does

-- name: matching
-- A fragment, not a query: the filter of find, replay, cancel and purge. An absent filter takes everything.
(:ids::bigint[] is null or d.id = any (:ids::bigint[]))
   and (:message_id::uuid is null or m.id = :message_id::uuid)
   and (:status::text is null or d.status = :status)
   and (:topic::text is null or m.topic = :topic)
   and (:destination::text is null or d.destination = :destination)
   and (:queue::text is null or d.queue = :queue)
   and (:reason::text is null or d.reason = :reason)
   and (:key::text is null or m.key = :key)
   and (:since::timestamptz is null or d.updated_at >= :since)
   and (:until::timestamptz is null or d.updated_at < :until)
   and (not :due::boolean or (d.status in ('pending', 'failed') and d.next_run_at <= todoku_now()))

-- name: pick
-- Locks what it returns, in id order, and passes over what somebody else is changing (H11).
select d.id, d.lane, d.gate, d.destination, d.queue, d.status, d.reason, m.key, m.key_hash, m.digest, m.id, m.scope
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:among::text[] is null or d.status = any (:among::text[])) and d.id > :after
 order by d.id limit :most for update of d skip locked

-- name: replay
-- The rows are locked and `aborted`; attempts start at 0, the epoch goes on rising (I4, I9). What killed its workers
-- stays a suspect: it still comes alone (H6).
update todoku_delivery
   set status = 'pending', epoch = epoch + 1, attempts = 0, lost = least(lost, 1), snoozes = 0,
       replay_count = replay_count + 1, reason = null, error = null, cancel_requested = false,
       next_run_at = todoku_now(), expires_at = 'infinity', updated_at = todoku_now()
 where id = any (:ids::bigint[]) and status = 'aborted'
returning id

-- name: replay_ledger
-- What is running again is not failed any more: a repeat must not be answered with the old failure (H15).
update todoku_ledger l set state = 'accepted', updated_at = todoku_now(), expires_at = 'infinity'
  from json_to_recordset(:entries::json) as s(scope text, key_hash text, digest text)
 where l.scope = s.scope and l.key_hash = s.key_hash and l.digest = s.digest and l.state = 'failed'

-- name: once_reopen
-- As replay_ledger, for whoever accepted the work under the name of its destination. Only what failed: a success stays.
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

-- name: refresh_lanes
-- Their next row, and so their time, may be another one now. If a worker owns the lane, its settle looks again.
update todoku_lane l
   set parked = l.parked and not :unpark,
       ready_at = coalesce((select next_run_at from todoku_delivery d
                             where d.lane = l.id and d.status <> 'aborted' order by d.id limit 1), todoku_now())
 where l.id = any (:lanes::bigint[])

-- name: audit
-- Append-only, in the transaction of what it tells of.
insert into todoku_audit (at, by, action, target, why)
select todoku_now(), :by, :action, target, :why from unnest(:targets::text[]) as s(target)

-- name: cancel
-- One statement decides under the row lock: what waits is aborted, what runs is asked (H22). A finished one is gone.
update todoku_delivery
   set status = case status when 'sending' then 'sending' else 'aborted' end,
       epoch = epoch + case status when 'sending' then 0 else 1 end,
       cancel_requested = status = 'sending',
       reason = case status when 'sending' then reason else 'CANCELLED' end,
       error = case status when 'sending' then error else :why end, updated_at = todoku_now()
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
-- Before the row goes, in its transaction. The rows are locked and do not run.
insert into todoku_result (delivery_id, message_seq, result, created_at)
select id, message_seq, :result::json, todoku_now() from todoku_delivery
 where id = any (:ids::bigint[]) and status <> 'sending'
    on conflict (delivery_id) do update set result = excluded.result, created_at = excluded.created_at

-- name: settle_by_hand_aborted
-- Never a running row: its owner settles it.
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'BY_HAND', error = :why, updated_at = todoku_now()
 where id = any (:ids::bigint[]) and status in ('pending', 'failed')
returning id

-- name: settle_by_hand_ledger
-- As settle_effects: the first success stays; another digest's failure is left alone (I5). Sorted by key (H11).
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
-- Only reads: the next rows of the history in their order, and whether each is meant. So many a time, meant or not.
select h.delivery_id, h.message_seq,
       coalesce(:topic::text is null or m.topic = :topic, false)
       and (:until::timestamptz is null or h.finished_at < :until)
  from (select delivery_id, message_seq, finished_at from todoku_history
         where (message_seq, delivery_id) > (:after_seq::bigint, :after_id::bigint)
         order by message_seq, delivery_id limit :most) h
  left join lateral (select topic from todoku_message where seq = h.message_seq limit 1) m on true
 order by h.message_seq, h.delivery_id

-- name: clear_history
-- What succeeded is over: nobody writes to it any more. Of two people the second removes nothing.
delete from todoku_history where message_seq = any (:seqs::bigint[]) and delivery_id = any (:ids::bigint[])
returning delivery_id

-- name: clear_attempts
-- Their deliveries went in this transaction.
delete from todoku_attempt where delivery_id = any (:ids::bigint[])

-- name: clear_results
-- Their deliveries went in this transaction.
delete from todoku_result where delivery_id = any (:ids::bigint[])

-- name: clear_messages
-- As prune_messages: only when no delivery of it is left, finished or not (I1).
delete from todoku_message m
 where m.seq = any (:seqs::bigint[])
   and not exists (select from todoku_delivery d where d.message_seq = m.seq offset 0)
   and not exists (select from todoku_history h where h.message_seq = m.seq offset 0)

-- name: set_queue
-- One row; claim reads it in its own statement, so a pause holds from the commit on.
insert into todoku_queue (name, paused, updated_at) values (:name, :paused, todoku_now())
    on conflict (name) do update set paused = excluded.paused, updated_at = excluded.updated_at

-- name: limit_queue
-- One row; running workers read it every second or so (`limits`). A new rate begins anew.
insert into todoku_queue (name, "limit", rate, limit_until, updated_at)
values (:name, :concurrency, :rate, todoku_now() + make_interval(secs => :lasts), todoku_now())
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null,
           updated_at = excluded.updated_at

-- name: limit_destination
-- As limit_queue. A destination nobody has announced yet is not announced by this: it was never seen.
insert into todoku_destination (name, "limit", rate, limit_until, seen_at)
values (:name, :concurrency, :rate, todoku_now() + make_interval(secs => :lasts), '-infinity')
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null

-- name: set_breaker
-- One row, seen by the claims of all workers (H24).
insert into todoku_destination (name, open_until, failures, seen_at)
values (:name, todoku_now() + make_interval(secs => :open_for), :failures, todoku_now())
    on conflict (name) do update set open_until = excluded.open_until, failures = excluded.failures

-- name: set_on_abort
-- One row; settle reads it when it aborts a lane's head.
insert into todoku_destination (name, on_abort, seen_at) values (:name, :on_abort, todoku_now())
    on conflict (name) do update set on_abort = excluded.on_abort

---------------------------------------------------------------------------------------- maintenance

-- name: announce
-- Says that somebody here knows these destinations; sorted, so that two workers cannot deadlock.
insert into todoku_destination (name, seen_at)
select name, todoku_now() from unnest(:destinations::text[]) as s(name) order by name
    on conflict (name) do update set seen_at = excluded.seen_at

-- name: expire
-- Only rows that wait; a running one is past its expiry only for its owner. In no order, as free_orphans.
with late as materialized (
    select id from todoku_delivery
     where status in ('pending', 'failed') and expires_at <= todoku_now() and expires_at < 'infinity'
     limit :most for update skip locked
)
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'EXPIRED', error = 'it was not delivered in time',
       updated_at = todoku_now()
 where id = any (array(select id from late))
returning id, lane, gate

-- name: announced
-- Only reads: destinations that some worker has announced lately.
select name from todoku_destination where seen_at > todoku_now() - make_interval(secs => :after)

-- name: abort_unknown
-- Only rows that have waited that long themselves, so a rolling deploy loses nothing.
with stray as materialized (
    select id from todoku_delivery
     where queue = :queue and destination = :destination and status in ('pending', 'failed')
       and next_run_at <= todoku_now() - make_interval(secs => :after)
     order by id limit :most for update skip locked
)
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'UNKNOWN_DESTINATION',
       error = 'no worker has registered ' || destination, updated_at = todoku_now()
 where id = any (array(select id from stray))
returning id, lane, gate

-- name: prune_batches
-- Only what is over: a batch that still waits for something, a replay too, stays as long as that takes.
delete from todoku_batch where id = any (array(
    select id from todoku_batch
     where done_at is not null and done_at < todoku_now() - make_interval(secs => :ttl) limit :most))
returning 1

-- name: prune_hooks
-- Those that `hooks` passes over anyway.
delete from todoku_hook
 where seen_at <= (select max(seen_at) from ({announcements}) a) - make_interval(secs => :forgotten_after)

-- name: prune_messages
-- A message goes only when no delivery of it is left (I1), and deliveries are born with their message, never later.
with chunk as materialized (
    select seq, created_at < todoku_now() - make_interval(secs => :ttl) as old
      from todoku_message where seq > :after order by seq limit :most
), gone as (
    delete from todoku_message m
     where m.seq = any (array(select seq from chunk where old))
       and not exists (select from todoku_delivery d where d.message_seq = m.seq offset 0)
    returning m.seq
)
select (select count(*) from gone), max(seq), count(*) = :most and bool_and(old) from chunk

-- name: prune_ledger
-- Never while a delivery with the key is there, dead letters included (H16).
with old as materialized (
    select ctid from todoku_ledger l
     where expires_at <= todoku_now() and expires_at < 'infinity'
       and not exists (select from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                        where m.key_hash = l.key_hash offset 0)
     limit :most for update skip locked
)
delete from todoku_ledger where ctid = any (array(select ctid from old))
returning 1

-- name: prune_attempts
-- Only of deliveries that are gone.
delete from todoku_attempt a where a.ctid = any (array(
    select ctid from todoku_attempt o
     where o.ended_at < todoku_now() - make_interval(secs => :ttl)
       and not exists (select from todoku_delivery d where d.id = o.delivery_id offset 0) limit :most))
returning 1

-- name: prune_results
-- By age alone: a result is kept as long as the history of its delivery.
delete from todoku_result where delivery_id = any (array(
    select delivery_id from todoku_result
     where created_at < todoku_now() - make_interval(secs => :ttl) limit :most))
returning 1

-- name: prune_inbox
-- By age alone: the retention is the deduplication window.
delete from todoku_inbox i where i.ctid = any (array(
    select ctid from todoku_inbox where seen_at < todoku_now() - make_interval(secs => :ttl) limit :most))
returning 1

-- name: prune_history
-- Whole partitions, none of which a settle writes to any more.
select todoku_history_drop(todoku_now() - make_interval(secs => :ttl))

-- name: prepare_history
-- Makes what is missing; two at once are kept apart by the lock.
select todoku_history_ahead(:days::int) from pg_advisory_xact_lock(hashtext('todoku_history_ahead'))

-- name: stray_history
-- Only reads: rows that found no partition of their day, which is an alarm (H27).
select count(*) from (select from todoku_history_default limit 1000) stray

------------------------------------------------------------------------------------------ schedules

-- name: schedule_columns
-- A fragment: a schedule as people and workers see it, and the time it is.
name, spec::text, date_part('epoch', next_run_at), paused, source, date_part('epoch', seen_at),
       date_part('epoch', last_run_at), last_message_id, error, date_part('epoch', updated_at),
       date_part('epoch', todoku_now())

-- name: schedule_kept
-- A fragment: not paused, and somebody keeps it: the database itself, or an App whose worker announced it lately.
not paused and (source = 'stored' or seen_at > todoku_now() - make_interval(secs => :after))

-- name: next_schedule
-- Only reads: the time it is, the next slot of all, and whether there is any schedule. The index ends it at one row.
select date_part('epoch', todoku_now()),
       (select date_part('epoch', next_run_at) from todoku_schedule
         where {schedule_kept} order by next_run_at limit 1),
       exists (select from todoku_schedule)

-- name: due_schedule
-- Locked until the messages of its slots and its next_run_at commit together (I2). Others pass a locked one over, and
-- who locks it later looks at the condition again and finds the next slot there.
select {schedule_columns}
  from todoku_schedule
 where {schedule_kept} and next_run_at <= todoku_now() and name <> all (:but::text[])
 order by next_run_at, name limit 1
   for update skip locked

-- name: lock_schedule
-- Nobody fires or changes it before this transaction ends.
select {schedule_columns}
  from todoku_schedule where name = :name
   for update

-- name: advance_schedule
-- In the transaction of due_schedule, or of a person who runs it now and leaves next_run_at as it is.
update todoku_schedule
   set next_run_at = :next, last_run_at = coalesce(:slot::timestamptz, last_run_at),
       last_message_id = coalesce(:message_id::uuid, last_message_id), error = null
 where name = :name

-- name: fail_schedule
-- Says what is wrong and moves nothing: another worker may be able to fire it.
update todoku_schedule set error = :error where name = :name

-- name: put_schedule
-- One row, locked by this transaction if it was there; of two that make it, the second writes the same or the newer
-- text. A pause is a person's and stays.
insert into todoku_schedule (name, spec, next_run_at, source, seen_at, updated_at)
values (:name, :spec::json, :next, :source, todoku_now(), todoku_now())
    on conflict (name) do update
       set spec = excluded.spec, next_run_at = excluded.next_run_at, source = excluded.source,
           seen_at = excluded.seen_at, updated_at = excluded.updated_at, error = null

-- name: announce_schedules
-- Says that somebody here declares these; locked in order, so that two workers cannot deadlock. One that was taken over
-- at run time stays so.
with mine as materialized (
    select name from todoku_schedule where name = any (:names::text[]) and source = 'code' order by name for update
)
update todoku_schedule set seen_at = todoku_now() where name = any (array(select name from mine))

-- name: pause_schedule
-- One row, locked by this transaction, which decided next_run_at.
update todoku_schedule set paused = :paused, next_run_at = :next, updated_at = todoku_now() where name = :name

-- name: remove_schedule
-- What it has published stays, and is delivered.
delete from todoku_schedule where name = :name

-- name: schedules
-- Only reads.
select {schedule_columns}
  from todoku_schedule order by name

---------------------------------------------------------------------------------------- data keys

-- name: publish_data_keys
-- With the message sealed by it, in the caller's transaction. No unique key, so nobody waits for somebody's commit; a
-- key that is committed is not stored again.
insert into todoku_data_key (id, day, master_key_id, wrapped, created_at)
select id, day, master_key_id, decode(wrapped, 'base64'), todoku_now()
  from json_to_recordset(cast(cast(:keys as text) as json))
       as s(id uuid, day text, master_key_id text, wrapped text)
 where not exists (select from todoku_data_key k where k.id = s.id offset 0)

-- name: data_keys
-- Only reads, by the index of ids: a key was stored before, or with, the message that needs it.
select id, day, master_key_id, wrapped from todoku_data_key where id = any (:ids::text[]::uuid[]) order by seq

-- name: data_key_days
-- Only reads; there are few: one a process and day.
select day, master_key_id, count(distinct id), date_part('epoch', min(created_at))
  from todoku_data_key group by day, master_key_id order by day, master_key_id

-- name: stale_data_keys
-- Locked in the order of their numbers: of two who rotate, the second finds the row changed and passes it over.
select seq, id, day, master_key_id, wrapped from todoku_data_key
 where seq > :after::bigint and master_key_id <> :current order by seq limit :most for update

-- name: rewrap_data_key
-- Locked and read by stale_data_keys in this transaction.
update todoku_data_key set master_key_id = :master_key_id, wrapped = :wrapped where seq = :seq

-- name: count_data_keys
-- Only reads.
select count(distinct id) from todoku_data_key where day >= :since and day < :before

-- name: stranded
-- Only reads: what is not succeeded and sealed by a key of these days, whose id is in the sealed bytes; of a request
-- with secret headers in those, too, in front.
select count(*) filter (where d.status <> 'aborted'), count(*) filter (where d.status = 'aborted')
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where (m.content_type like :kind
        and exists (select from todoku_data_key k
                     where k.id = encode(substring(m.payload_bytes from 2 for 16), 'hex')::uuid
                       and k.day >= :since and k.day < :before))
    or (m.headers::text like :secrets
        and exists (select from todoku_data_key k
                     where k.id::text = substr(m.headers ->> 'todoku-secrets', 1, 36)
                       and k.day >= :since and k.day < :before))

-- name: blank_data_keys
-- Only what the next statement deletes.
update todoku_data_key set wrapped = '' where day >= :since and day < :before

-- name: delete_data_keys
-- Days that are over: no process seals with their keys any more, and what they sealed cannot be read again by anybody.
delete from todoku_data_key where day >= :since and day < :before returning id, day

-- name: newest_messages
-- Only reads, so many rows from the end; a payload that is sealed, not JSON or large stays where it is.
select topic, case when octet_length(payload::text) <= :largest then payload::text end, content_type
  from todoku_message order by seq desc limit :most

------------------------------------------------------------------------------- secrets and tokens

-- name: lock_secrets
-- A statement of its own: the next one sees what whoever had the lock before has committed. It ends with the transaction.
select pg_advisory_xact_lock(hashtext('todoku secrets'))

-- name: secrets
-- Only reads: those of a name or of its family (null: all) that have not ended.
select id, name, value, master_key_id, date_part('epoch', created_at),
       case when expires_at < 'infinity' then date_part('epoch', expires_at) end, date_part('epoch', todoku_now())
  from todoku_secret
 where (:name::text is null or name = :name or starts_with(name, :name::text || ':')) and expires_at > todoku_now()
 order by created_at, id

-- name: put_secret
-- What there is was read in this transaction, under lock_secrets.
insert into todoku_secret (id, name, value, master_key_id, created_at, expires_at)
values (:id, :name, :value, :master_key_id, todoku_now(),
        coalesce(todoku_now() + make_interval(secs => :lasts), 'infinity'))
    on conflict (id) do update
       set name = excluded.name, value = excluded.value, master_key_id = excluded.master_key_id,
           expires_at = excluded.expires_at

-- name: remove_secrets
-- They were read in this transaction, under lock_secrets.
delete from todoku_secret where id = any (:ids::text[]::uuid[])

-- name: prune_secrets
-- By time alone: what has ended is not read any more.
delete from todoku_secret where id = any (array(
    select id from todoku_secret where expires_at <= todoku_now() limit :most))
returning 1

-- name: api_key_columns
-- A fragment: a token without its hash, and whether it opens anything.
id, name, scopes, date_part('epoch', created_at), date_part('epoch', expires_at), date_part('epoch', revoked_at),
       date_part('epoch', last_used_at), revoked_at is null and (expires_at is null or expires_at > todoku_now())

-- name: add_api_key
-- The id and the hash are new: both are of chance.
insert into todoku_api_key (id, name, hash, scopes, created_at, expires_at)
values (:id, :name, :hash, :scopes, todoku_now(), todoku_now() + make_interval(secs => :lasts))

-- name: any_api_key
-- Only reads, under lock_secrets.
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
update todoku_api_key set revoked_at = todoku_now() where id = :id and revoked_at is null
returning {api_key_columns}

-- name: use_api_key
-- One row, and seldom: nothing but people reads it.
update todoku_api_key set last_used_at = todoku_now()
 where id = :id and (last_used_at is null or last_used_at <= todoku_now() - make_interval(secs => :every))

------------------------------------------------------------------ queues, flow keys and URL groups

-- name: queue_columns
-- A fragment: a queue with what is in force, and the time it is.
name, paused, case when {counts} then "limit" end, case when {counts} then rate end, spec::text,
       date_part('epoch', created_at), date_part('epoch', updated_at), date_part('epoch', tat),
       date_part('epoch', todoku_now())

-- name: http_queue
-- Only reads, by the primary key.
select {queue_columns}
  from todoku_queue where name = :name

-- name: http_queues
-- Only reads: there are few.
select {queue_columns}
  from todoku_queue
 where starts_with(name, :kind) and created_at is not null
   and (:search::text is null or strpos(substr(name, 6), :search) > 0)
 order by name limit :most

-- name: lock_queue
-- Locks the row: nobody changes it before this transaction ends.
select {queue_columns}
  from todoku_queue where name = :name for update

-- name: make_queue
-- One row, if it is not there; what it says is written by put_queue in this transaction.
insert into todoku_queue (name, updated_at) values (:name, todoku_now()) on conflict (name) do nothing

-- name: put_queue
-- One row, locked by this transaction. A rate that is another one now begins anew.
update todoku_queue
   set paused = :paused, "limit" = :concurrency, rate = :rate, spec = :spec::json, limit_until = null,
       tat = case when rate is not distinct from :rate::float8 then tat end,
       created_at = coalesce(created_at, todoku_now()), updated_at = todoku_now()
 where name = :name

-- name: remove_queue
-- One row; deliveries carry the name of their queue, and need no row of it.
delete from todoku_queue where name = :name and created_at is not null returning name

-- name: reset_rate
-- One row; the next claim counts from now.
update todoku_queue set tat = null, updated_at = todoku_now() where name = :name and created_at is not null
returning name

-- name: queue_loads
-- Only reads: what waits is counted in the indexes that claim reads, up to a number; what runs in its small one.
select p.name,
       (select count(*) from (select from todoku_delivery d
                               where d.queue = p.name and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost = 0 and d.gate is null limit :most) w)
     + (select count(*) from (select from todoku_delivery d
                               where d.queue = p.name and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost > 0 limit :most) w)
     + (select count(*) from (select from todoku_delivery d
                               where d.lane = p.lane and d.lane is not null
                                 and d.status <> 'aborted' and d.status <> 'sending' limit :most) w),
       (select count(*) from todoku_delivery d where d.status = 'sending' and d.queue = p.name)
  from json_to_recordset(:places::json) as p(name text, lane bigint)

-- name: http_running
-- Only reads: what runs is in a small index, and so are the live leases.
select (select count(*) from todoku_delivery d where d.status = 'sending' and {is_http}),
       (select count(*) from todoku_worker where expires_at > todoku_now())

-- name: is_http
-- A fragment, word for word as in the indexes of requests: the delivery is one of a request.
substr(queue || ':', 1, 5) in ('http:', 'flow:')

-- name: prune_cancelled
-- Requests that somebody cancelled, with an audit row that stays, when delivered ones would go too: nobody replays them.
-- One that somebody is changing is left alone.
with old as materialized (
    select id from todoku_delivery
     where status = 'aborted' and {is_http} and updated_at < todoku_now() - make_interval(secs => :ttl)
       and reason = 'CANCELLED' limit :most for update skip locked
)
delete from todoku_delivery where id = any (array(select id from old))
returning 1

-- name: prune_queues
-- Only what came into being by use: nobody has used it for long, nothing of it is left, and the next use makes it anew.
delete from todoku_queue where name = any (array(
    select q.name from todoku_queue q
     where q.created_at is not null and not q.paused and q.spec ->> 'implicit' = 'true'
       and q.spec ->> 'pinned_parallelism' is null and q.spec ->> 'pinned_rate' is null
       and q.updated_at < todoku_now() - make_interval(secs => :ttl)
       and not exists (select from todoku_delivery d
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost = 0 and d.gate is null offset 0)
       and not exists (select from todoku_delivery d
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost > 0 offset 0)
       and not exists (select from todoku_delivery d where d.status = 'sending' and d.queue = q.name offset 0)
       and not exists (select from todoku_lane l
                        where l.queue = q.name and l.worker_id is null and not l.parked offset 0)
       and not exists (select from todoku_lane l where l.queue = q.name and l.parked offset 0)
       and not exists (select from todoku_lane l where l.queue = q.name and l.worker_id is not null offset 0)
     order by q.name limit :most))
returning 1

-- name: groups
-- Only reads: there are few.
select name, headers::text, date_part('epoch', created_at), date_part('epoch', updated_at) from todoku_group
 where :names::text[] is null or name = any (:names::text[])
 order by name

-- name: endpoints
-- Only reads: there are few. In the order in which they came.
select group_name, url, name, state = 'enabled', reason from todoku_endpoint
 where group_name is not null and (:names::text[] is null or group_name = any (:names::text[]))
 order by group_name, id

-- name: put_group
-- One row, which is locked from here on; headers stay unless others are given.
insert into todoku_group (name, headers, created_at, updated_at) values (:name, :headers::json, todoku_now(), todoku_now())
    on conflict (name) do update
       set headers = coalesce(excluded.headers, todoku_group.headers), updated_at = excluded.updated_at

-- name: put_endpoint
-- One row of a group for a URL, sorted by URL: no deadlock. Put again, it is enabled again.
insert into todoku_endpoint (id, url, state, spec, updated_at, group_name, name, created_at)
values (:id, :url, 'enabled', '{}'::json, todoku_now(), :group, :name, todoku_now())
    on conflict (group_name, url) do update
       set name = excluded.name, state = 'enabled', reason = null, updated_at = excluded.updated_at

-- name: remove_endpoints
-- What was published is delivered: a message carries its URL.
delete from todoku_endpoint
 where group_name = :group and (url = any (:urls::text[]) or name = any (:names::text[]))
returning url

-- name: touch_group
-- In the transaction that changed its endpoints.
update todoku_group set updated_at = todoku_now() where name = :name

-- name: remove_empty_group
-- The row is locked by touch_group: who adds an endpoint meanwhile waits, and makes the group anew.
delete from todoku_group where name = :name and not exists (select from todoku_endpoint where group_name = :name)

-- name: remove_group
-- With its endpoints, in one statement. Messages carry their URL, and are delivered.
with gone as (delete from todoku_endpoint where group_name = :name)
delete from todoku_group where name = :name returning name

-- name: set_endpoint
-- Whoever comes second changes nothing: it is so already.
update todoku_endpoint set state = :state, reason = :reason, updated_at = todoku_now()
 where url = :url and (:group::text is null or group_name = :group) and state <> :state
returning id

------------------------------------------------------------------------------------------- requests

-- name: http_topics
-- A fragment, word for word as in the index of requests: the message is one.
m.topic in ('http.request', 'http.callback')

-- name: request_columns
-- A fragment: a delivery and its request, without the body.
d.id, m.seq, m.id, m.headers::text, date_part('epoch', m.created_at), d.status, d.queue, d.attempts,
       date_part('epoch', d.next_run_at), date_part('epoch', d.updated_at), d.reason, d.error, d.replay_count,
       d.cancel_requested, date_part('epoch', d.claimed_at)

-- name: finished_columns
-- A fragment: as request_columns, of one that was delivered.
h.delivery_id, m.seq, m.id, m.headers::text, date_part('epoch', m.created_at), 'succeeded', h.queue, h.attempts,
       date_part('epoch', h.finished_at), date_part('epoch', h.finished_at), null::text, null::text, h.replay_count,
       false, null::float8

-- name: requests_of
-- Only reads, by the unique index of ids, in one statement: what is being settled is in one of the two, never neither.
select {request_columns}
  from unnest(:ids::text[]::uuid[]) as s(id)
 cross join lateral (
    select seq, id, headers, created_at from todoku_message m where m.id = s.id and {http_topics} limit 1) m
 cross join lateral (select * from todoku_delivery where message_seq = m.seq offset 0) d
 union all
select {finished_columns}
  from unnest(:ids::text[]::uuid[]) as s(id)
 cross join lateral (
    select seq, id, headers, created_at from todoku_message m where m.id = s.id and {http_topics} limit 1) m
 cross join lateral (select * from todoku_history where message_seq = m.seq offset 0) h
 order by 1

-- name: dead_requests
-- Only reads, down the index of dead requests from a position on.
select {request_columns}
  from (select * from todoku_delivery
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and (:cancelled::boolean or coalesce(reason, '') <> 'CANCELLED')
         order by updated_at desc, id desc limit :most) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message where seq = d.message_seq limit 1) m
 order by d.updated_at desc, d.id desc

-- name: dead_requests_of
-- Only reads, by the primary key.
select {request_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_delivery where id = s.id and status = 'aborted' limit 1) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message m where seq = d.message_seq and {http_topics} limit 1) m
 order by d.updated_at desc, d.id desc

-- name: waiting_requests
-- Only reads, up the ids from a position on. The act that follows looks at each again, under its lock.
select {request_columns}
  from (select * from todoku_delivery
         where id > :after and status in ('pending', 'failed', 'sending') and not cancel_requested and {is_http}
         order by id limit :most) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message where seq = d.message_seq limit 1) m
 order by d.id

-- name: request_bodies
-- Only reads, by the unique index of ids.
select m.id, m.topic, m.content_type, coalesce(m.payload_bytes, convert_to(m.payload::text, 'UTF8'))
  from todoku_message m
 where m.id = any (:ids::text[]::uuid[]) and {http_topics}

-- name: is_last_try
-- A fragment: no other attempt followed this one before the next replay.
not exists (select from todoku_attempt b
             where b.delivery_id = a.delivery_id and b.epoch > a.epoch and b.replay = a.replay offset 0)

-- name: killed
-- A fragment: the end of this attempt made the delivery a dead letter: nothing has changed it since.
(d.status = 'aborted' and d.epoch = a.epoch + 1)

-- name: tried_columns
-- A fragment: a failed attempt, whether anything followed it, whether it is why the delivery is dead, and its message.
a.delivery_id, a.epoch, a.replay, a.number, date_part('epoch', a.started_at), date_part('epoch', a.ended_at),
       a.reason, a.error, a.response::text,
       {is_last_try} and case when d.id is not null then d.replay_count > a.replay or {killed}
           else not exists (select from todoku_history h where h.message_seq = a.message_seq
                               and h.delivery_id = a.delivery_id and h.replay_count = a.replay offset 0) end,
       d.id is not null and {killed},
       m.id, m.headers::text, date_part('epoch', m.created_at)

-- name: of_attempt
-- A fragment: the delivery and the request of an attempt, each by its key, as far as they are there.
left join lateral (
    select id, status, replay_count, epoch, message_seq from todoku_delivery where id = a.delivery_id limit 1) d on true
  left join lateral (
    select id, headers, created_at from todoku_message m
     where seq = coalesce(a.message_seq, d.message_seq) and {http_topics} limit 1) m on true

-- name: attempts_of_requests
-- Only reads, by the index of attempts.
select {tried_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_attempt where delivery_id = s.id offset 0) a
  {of_attempt}
 where m.id is not null
 order by a.delivery_id, a.epoch

-- name: last_tried
-- Only reads, by the index of attempts, whose last entry of a delivery is its last attempt.
select {tried_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_attempt where delivery_id = s.id order by epoch desc limit 1) a
  {of_attempt}
 where m.id is not null

-- name: requests_created
-- Only reads, by the unique index of ids.
select m.id, m.headers::text, date_part('epoch', m.created_at) from todoku_message m
 where m.id = any (:ids::text[]::uuid[]) and {http_topics}

-- name: created_requests
-- Only reads, down the index of requests from a position on: ids begin with their time.
select m.id, m.headers::text, date_part('epoch', m.created_at) from todoku_message m
 where {http_topics} and m.id <= :before and m.id >= :since
 order by m.id desc limit :most

-- name: sending_requests
-- Only reads: what is in flight has a small index.
select {request_columns}
  from (select * from todoku_delivery
         where status = 'sending' and {is_http} and claimed_at >= :since and (claimed_at, id) <= (:before, :before_id)
         order by claimed_at desc, id desc limit :most) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message where seq = d.message_seq limit 1) m
 order by d.claimed_at desc, d.id desc

-- name: tried_requests
-- Only reads, down the index of ends from a position on; so many rows, those that are of no request too.
select {tried_columns}
  from (select * from todoku_attempt
         where ended_at >= :since and ended_at <= :before
           and (ended_at, delivery_id, epoch) <= (:before, :before_id, :before_epoch)
         order by ended_at desc, delivery_id desc, epoch desc limit :most) a
  {of_attempt}
 order by a.ended_at desc, a.delivery_id desc, a.epoch desc

-- name: delivered_requests
-- Only reads, down the index of delivered requests from a position on.
select {finished_columns}
  from (select * from todoku_history
         where {is_http} and finished_at >= :since and (finished_at, delivery_id) <= (:before, :before_id)
         order by finished_at desc, delivery_id desc limit :most) h
  left join lateral (
    select seq, id, headers, created_at from todoku_message m
     where seq = h.message_seq and {http_topics} limit 1) m on true
 order by h.finished_at desc, h.delivery_id desc

------------------------------------------------------------------------------------------- reading

-- name: clock
-- Only reads: the database's clock.
select date_part('epoch', todoku_now())

-- name: server
-- Only reads.
select current_setting('server_version'), current_setting('synchronous_commit')

-- name: schema_version
-- Only reads.
select max(version) from todoku_migration

-- name: server_facts
-- Only reads: connections there are and may be, whether the server or this role is read-only (a standby, or a setting that
-- other transactions of ours begin with), who answers (a pooler lies about that), and every schema with tables of ours.
select (select count(*) from pg_stat_activity where backend_type = 'client backend'),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean,
       current_setting('synchronous_commit'), current_setting('fsync'), pg_backend_pid(),
       current_setting('server_encoding'), current_schema() is null,
       array(select relnamespace::regnamespace::text from pg_class
              where relname = 'todoku' || '_message' and relkind = 'r' order by 1)

-- name: find
-- Only reads. By id downwards from the cursor, so a page is as cheap as the first.
select d.id, m.id, m.topic, m.key, d.destination, d.queue, d.lane, d.priority, d.status, d.attempts,
       d.max_attempts, d.lost, d.snoozes, d.replay_count, d.epoch, d.worker_id, d.cancel_requested,
       date_part('epoch', d.next_run_at), date_part('epoch', m.created_at), date_part('epoch', d.updated_at),
       d.reason, d.error
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:before::bigint is null or d.id < :before)
 order by d.id desc limit :most

-- name: find_history
-- Only reads. By (message, delivery) downwards; a message that was pruned already is still told of.
select h.delivery_id, m.id, m.topic, m.key, h.destination, h.queue, null, 0, 'succeeded', h.attempts,
       h.attempts, 0, 0, h.replay_count, h.epoch, h.worker_id, false,
       date_part('epoch', h.finished_at), date_part('epoch', m.created_at), date_part('epoch', h.finished_at),
       null, null, h.message_seq
  from todoku_history h left join todoku_message m on m.seq = h.message_seq
 where (:message_id::uuid is null or m.id = :message_id::uuid)
   and (:ids::bigint[] is null or h.delivery_id = any (:ids::bigint[]))
   and (:topic::text is null or m.topic = :topic)
   and (:destination::text is null or h.destination = :destination)
   and (:queue::text is null or h.queue = :queue)
   and (:key::text is null or m.key = :key)
   and (:since::timestamptz is null or h.finished_at >= :since)
   and (:until::timestamptz is null or h.finished_at < :until)
   and (:before::bigint is null or (h.message_seq, h.delivery_id) < (:before_seq::bigint, :before::bigint))
 order by h.message_seq desc, h.delivery_id desc limit :most

-- name: message
-- Only reads.
select seq, id, topic, type, key, payload::text, payload_bytes, content_type, headers::text, labels::text,
       date_part('epoch', created_at)
  from todoku_message where id = :message_id

-- name: attempts
-- Only reads.
select delivery_id, replay, number, epoch, date_part('epoch', started_at), date_part('epoch', ended_at), reason,
       error, worker_id, response::text
  from todoku_attempt where delivery_id = any (:ids::bigint[]) order by delivery_id, epoch

-- name: audits
-- Only reads.
select date_part('epoch', at), by, action, target, why from todoku_audit
 where target = any (:targets::text[]) order by id

-- name: result
-- Only reads.
select result::text from todoku_result where delivery_id = :id

-- name: standing
-- Only reads, in one statement: a delivery that is being settled is in one of the two, never in neither.
select d.id, d.status, d.reason, d.error, null
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.destination = :destination
 union all
select h.delivery_id, 'succeeded', null, null,
       (select r.result::text from todoku_result r where r.delivery_id = h.delivery_id)
  from todoku_message m join todoku_history h on h.message_seq = m.seq
 where m.id = :message_id and h.destination = :destination

-- name: entry
-- Only reads.
select digest, state, message_id, http_status, response::text, date_part('epoch', created_at),
       date_part('epoch', updated_at)
  from todoku_ledger where scope = :scope and key_hash = :key_hash

-- name: size
-- Only reads, at most so many rows: enough to know whether counting is cheap.
select count(*), (select min(id) from todoku_delivery), (select max(id) from todoku_delivery)
  from (select from todoku_delivery limit :most) d

-- name: count_deliveries
-- Only reads. There are at most so many; saying so gives the planner a way through the primary key.
select status, destination, coalesce(reason, ''), count(*)
  from (select status, destination, reason from todoku_delivery order by id limit :most) d group by 1, 2, 3

-- name: count_dead
-- Only reads, at most so many rows, by the index of dead letters.
select destination, coalesce(reason, ''), count(*)
  from (select destination, reason from todoku_delivery where status = 'aborted' order by id limit :most) d
 group by 1, 2

-- name: edges
-- Only reads: of each part of the id range the first and the last id in it, by two probes of the primary key.
select low.id, high.id from json_to_recordset(:parts::json) as s(low bigint, high bigint)
 cross join lateral (select id from todoku_delivery where id >= s.low and id <= s.high order by id limit 1) low
 cross join lateral (select id from todoku_delivery where id >= s.low and id <= s.high order by id desc limit 1) high

-- name: count_sample
-- Only reads: windows of the id range; each row stands for as many as its window goes into its piece.
select d.status, d.destination, coalesce(d.reason, ''), sum(s.weight)
  from json_to_recordset(:windows::json) as s(start bigint, width bigint, weight float8)
 cross join lateral (select status, destination, reason from todoku_delivery
                      where id >= s.start and id < s.start + s.width) d
 group by 1, 2, 3

-- name: lag_due
-- Only reads. Of each place at most so many rows, from the index alone, oldest first.
select due.number, due.age, due.number
  from json_to_recordset(:places::json) as s(queue text, destination text, priority smallint)
 cross join lateral (
    select count(*) as number, coalesce(date_part('epoch', todoku_now() - min(next_run_at)), 0) as age from (
        select next_run_at from todoku_delivery
         where queue = s.queue and destination = s.destination and priority = s.priority
           and status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and next_run_at <= todoku_now() and expires_at > todoku_now()
         order by next_run_at, id limit :most) d) due

-- name: lag_apart
-- Only reads: what is not in the due index. Lanes by theirs, in its order, so that no other row is walked; suspects,
-- which are few; gates by theirs. At most so many rows of each are looked at.
select count(*) filter (where due),
       coalesce(date_part('epoch', todoku_now() - min(next_run_at) filter (where due)), 0), count(*)
  from (select next_run_at, status in ('pending', 'failed') and next_run_at <= todoku_now()
                            and expires_at > todoku_now() as due
          from todoku_delivery where lane is not null and status <> 'aborted' order by lane, id limit :most) d
union all
select count(*) filter (where due),
       coalesce(date_part('epoch', todoku_now() - min(next_run_at) filter (where due)), 0), count(*)
  from (select next_run_at, next_run_at <= todoku_now() and expires_at > todoku_now() as due
          from todoku_delivery where status in ('pending', 'failed') and lane is null and lost > 0
         order by queue, destination, next_run_at, id limit :most) d
union all
select count(*) filter (where due),
       coalesce(date_part('epoch', todoku_now() - min(next_run_at) filter (where due)), 0), count(*)
  from (select next_run_at, lost = 0 and next_run_at <= todoku_now() and expires_at > todoku_now() as due
          from todoku_delivery where status in ('pending', 'failed') and gate is not null
         order by gate, priority, next_run_at, id limit :most) d

-- name: lag_held
-- Only reads: what is in flight by its small index, and at most so many dead letters by theirs.
select count(*),
       count(*) filter (where claimed_at < todoku_now() - make_interval(secs => :stuck_after)
                           or not exists (select from todoku_worker w
                                           where w.id = d.worker_id and w.expires_at > todoku_now())),
       (select count(*) from (select from todoku_delivery where status = 'aborted' order by id limit :most) dead)
  from todoku_delivery d where status = 'sending'

-- name: lag_sample
-- Only reads: as count_sample, of what is due and of dead letters.
select sum(s.weight) filter (where d.status in ('pending', 'failed') and d.next_run_at <= todoku_now()
                               and d.expires_at > todoku_now()),
       sum(s.weight) filter (where d.status = 'aborted')
  from json_to_recordset(:windows::json) as s(start bigint, width bigint, weight float8)
 cross join lateral (select status, next_run_at, expires_at from todoku_delivery
                      where id >= s.start and id < s.start + s.width) d

-- name: count_history
-- Only reads: exactly while there are few; then the planner's own estimate, scaled to the pages there are now, because
-- counting would read every partition. A partition without statistics is taken at 100 bytes a row.
select case when few <= 100000 then few else (
           select coalesce(sum(case when c.reltuples > 0 and c.relpages > 0
                                    then c.reltuples / c.relpages * (pg_relation_size(c.oid) / 8192)
                                    else pg_relation_size(c.oid) / 100 end), 0)
             from pg_inherits i join pg_class c on c.oid = i.inhrelid
            where i.inhparent = 'todoku_history'::regclass) end::bigint
  from (select count(*) as few from (select from todoku_history limit 100001) h) f

-- name: limits
-- Only reads: one row per queue and destination that says something, and per live lease. A few rows, in one statement,
-- because every worker asks every second. A limit whose time is over says nothing. Each part repeats the condition of a
-- partial index (todoku_queue_held, todoku_destination_held), so that the others are not walked.
select 'queue', name, paused, case when {counts} then "limit" end, case when {counts} then rate end, 0::float8, 0
  from todoku_queue
 where paused or {counts}
union all
select 'destination', name, false, case when {counts} then "limit" end, case when {counts} then rate end,
       case when open_until > todoku_now() then date_part('epoch', open_until) else 0 end, failures
  from todoku_destination
 where (open_until > '-infinity' and open_until > todoku_now()) or failures > 0 or {counts}
union all
select 'worker', id::text, false, null, null, 0, 0 from todoku_worker where expires_at > todoku_now()
 order by 1, 2

-- name: counts
-- A fragment: whether the limit of a row is in force. Each part names one column of the partial indexes of `limits`.
(("limit" is not null and (limit_until is null or limit_until > todoku_now()))
        or (rate is not null and (limit_until is null or limit_until > todoku_now())))

-- name: workers
-- Only reads; what each holds is counted in the small index of rows in flight.
select id, name, state, date_part('epoch', started_at), date_part('epoch', expires_at),
       (select count(*) from todoku_delivery d where d.status = 'sending' and d.worker_id = w.id)
  from todoku_worker w order by started_at, id

-- name: previews
-- Only reads; a payload too large to be shown stays where it is.
select id, case when octet_length(payload::text) <= :largest then payload::text end,
       coalesce(octet_length(payload::text), octet_length(payload_bytes)), content_type
  from todoku_message where id = any (:ids::text[]::uuid[])

-- name: dead_groups
-- Only reads, at most so many rows, by the index of dead letters. The newest of each group is its example.
select g.reason, g.destination, g.number, date_part('epoch', g.since), date_part('epoch', g.until), g.newest, d.error
  from (select coalesce(reason, '') as reason, destination, count(*) as number, min(updated_at) as since,
               max(updated_at) as until, max(id) as newest
          from (select id, reason, destination, updated_at from todoku_delivery
                 where status = 'aborted' order by id limit :most) dead
         group by 1, 2) g
 cross join lateral (select error from todoku_delivery where id = g.newest limit 1) d
 order by g.number desc, 1, 2

-- name: known
-- Only reads: every queue and destination somebody has said something about, and when a worker last announced it.
select 'queue', name, null::float8 from todoku_queue
union all
select 'destination', name, case when seen_at > '-infinity' then date_part('epoch', seen_at) end
  from todoku_destination
 order by 1, 2

-- name: situation
-- Only reads; what is in flight is counted in its small index.
select case when d.expires_at < 'infinity' then date_part('epoch', d.expires_at) end, date_part('epoch', d.claimed_at),
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.queue = d.queue),
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.destination = d.destination), d.gate
  from todoku_delivery d where d.id = :id

-- name: gate
-- Only reads.
select key, "limit", rate, running, case when rate is not null then date_part('epoch', tat) end
  from todoku_gate where id = :gate

-- name: full_gates
-- Only reads: gates at their limit with something behind it, found by what runs. No more is counted than is shown.
select g.queue, g.destination, g.key, g."limit", g.rate, g.running, w.number
  from (select distinct gate from todoku_delivery where status = 'sending' and gate is not null) d
 cross join lateral (select * from todoku_gate where id = d.gate and running >= "limit" limit 1) g
 cross join lateral (
    select count(*) as number from (
        select from todoku_delivery where gate = g.id and status in ('pending', 'failed') limit :counted) d) w
 where w.number > 0
 order by w.number desc, g.destination, g.key limit :most

-- name: lane
-- Only reads.
select date_part('epoch', ready_at), worker_id, failures, parked from todoku_lane where id = :lane

-- name: lane_head
-- Only reads: the first row of a lane that is not over, which is the next to run (I10).
select id from todoku_delivery where lane = :lane and status <> 'aborted' order by id limit 1

-- name: lane_blocker
-- Only reads: the dead letters of a lane that can have parked it.
select id from todoku_delivery
 where lane = :lane and status = 'aborted' and coalesce(reason, '') <> all (:gone::text[])
 order by id limit 1

-- name: audit_page
-- Only reads, by number downwards. A filter that few acts pass walks the rest: acts of people are not many.
select id, date_part('epoch', at), by, action, target, why from todoku_audit
 where (:before::bigint is null or id < :before)
   and (:by::text is null or by = :by)
   and (:action::text is null or action = :action)
   and (:target::text is null or target = :target)
 order by id desc limit :most

-- name: series_size
-- Only reads: about how many rows a span has, by the planner's own numbers of its days; nothing is counted.
select (coalesce(sum(case when c.reltuples > 0 and c.relpages > 0
                          then c.reltuples / c.relpages * (pg_relation_size(c.oid) / 8192)
                          else pg_relation_size(c.oid) / 100 end), 0)
        * least(1.0, date_part('epoch', :until::timestamptz - :since::timestamptz)
                     / (86400.0 * greatest(1, count(*) - 1))))::bigint
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = 'todoku_history'::regclass
   and (right(c.relname, 8) = '_default'
        or right(c.relname, 8) between to_char(:since::timestamptz at time zone 'UTC', 'YYYYMMDD')
                                   and to_char(:until::timestamptz at time zone 'UTC', 'YYYYMMDD'))

-- name: series
-- Only reads: the blocks of the span alone, by an index of a few pages.
select floor(date_part('epoch', finished_at) / :width)::bigint * :width, count(*)
  from todoku_history
 where finished_at >= :since::timestamptz and finished_at < :until::timestamptz
 group by 1

-- name: series_sampled
-- Only reads: one block in :step, each of its rows standing for as many; the same blocks every time.
select floor(date_part('epoch', finished_at) / :width)::bigint * :width, count(*) * :step
  from todoku_history tablesample system (100.0 / :step) repeatable (0)
 where finished_at >= :since::timestamptz and finished_at < :until::timestamptz
 group by 1

-- name: series_failed
-- Only reads, by the index, the latest :most of the span.
select floor(date_part('epoch', ended_at) / :width)::bigint * :width, count(*)
  from (select ended_at from todoku_attempt
         where ended_at >= :since::timestamptz and ended_at < :until::timestamptz
         order by ended_at desc limit :most) a
 group by 1

-- name: tail
-- Only reads, of each kind at most so many of the latest, so that it costs the same however much there is. What one
-- transaction wrote has one time: there `turn` tells what came first.
select date_part('epoch', at), what, delivery_id, message_id, topic, destination, told, mark from (
    (select created_at as at, 'published' as what, null::bigint as delivery_id, id::text as message_id, topic,
            null as destination, key as told, seq::text as mark, seq as turn
       from todoku_message order by seq desc limit :most)
    union all
    select h.finished_at, 'succeeded', h.delivery_id, m.id::text, m.topic, h.destination, null,
           h.delivery_id || '.' || h.epoch, h.delivery_id
      from (select * from todoku_history order by message_seq desc limit :most) h
      left join lateral (select id, topic from todoku_message where seq = h.message_seq limit 1) m on true
    union all
    select a.ended_at, case when d.status = 'aborted' and d.epoch = a.epoch + 1 then 'aborted' else 'failed' end,
           a.delivery_id, m.id::text, m.topic, d.destination, a.reason || coalesce(': ' || a.error, ''),
           a.delivery_id || '.' || a.epoch, a.delivery_id
      from (select * from todoku_attempt order by ended_at desc limit :most) a
      left join lateral (select * from todoku_delivery where id = a.delivery_id limit 1) d on true
      left join lateral (select id, topic from todoku_message where seq = d.message_seq limit 1) m on true
    union all
    (select at, action, null, null, null, target, by || ': ' || why, id::text as mark, id as turn
       from todoku_audit order by todoku_audit.id desc limit :most)) events
 where at > to_timestamp(:since)
 order by at, turn

-- name: count_read
-- Only reads.
select date_part('epoch', todoku_now() - counted_at), value::text from todoku_count where name = :name

-- name: count_write
-- The last writer wins: all of them counted the same table.
insert into todoku_count (name, counted_at, value) values (:name, todoku_now(), :value)
    on conflict (name) do update set counted_at = excluded.counted_at, value = excluded.value

---------------------------------------------------------------------------------------------------- alerts

-- name: alerts
-- Only reads.
select name, sink, date_part('epoch', since), date_part('epoch', seen_at), date_part('epoch', next_at),
       date_part('epoch', told_at), ended, tries, value, threshold, date_part('epoch', todoku_now())
  from todoku_alert order by name, sink

-- name: begin_alert
-- The primary key decides between daemons that see it first; all go by name and sink, so that none deadlocks.
insert into todoku_alert (name, sink, since, seen_at, next_at, told_at, ended, tries, value, threshold)
values (:name, :sink, :since, :seen_at, :next_at, :told_at, :ended, :tries, :value, :threshold)
    on conflict (name, sink) do nothing

-- name: lock_alerts
-- In key order, as everybody does: what a daemon decides by these rows holds until it commits.
select name, sink, date_part('epoch', since), date_part('epoch', seen_at), date_part('epoch', next_at),
       date_part('epoch', told_at), ended, tries, value, threshold, date_part('epoch', todoku_now())
  from todoku_alert order by name, sink for update

-- name: write_alert
-- The row is locked by lock_alerts in this transaction.
update todoku_alert
   set since = :since, seen_at = :seen_at, next_at = :next_at, told_at = :told_at, ended = :ended, tries = :tries,
       value = :value, threshold = :threshold
 where name = :name and sink = :sink

-- name: told_alert
-- Fenced by tries: whoever lost its lease to another changes nothing.
update todoku_alert set told_at = todoku_now(), next_at = todoku_now() + make_interval(secs => :remind)
 where name = :name and sink = :sink and tries = :tries

-- name: forget_alert
-- Fenced by tries, as told_alert.
delete from todoku_alert where name = :name and sink = :sink and tries = :tries

-- name: unwanted_dead
-- Only reads: of so many dead letters at both ends of their index, those that nobody wanted dead.
select count(*), date_part('epoch', todoku_now() - min(updated_at))
  from ((select id, updated_at, reason from todoku_delivery where status = 'aborted' order by id limit :most)
        union
        (select id, updated_at, reason from todoku_delivery where status = 'aborted' order by id desc limit :most)) dead
 where coalesce(reason, '') not in ('CANCELLED', 'BY_HAND')

---------------------------------------------------------------------------------- invariants (docs/glossary.md)
-- One snapshot for all of them, so that a transaction is seen whole or not at all. Each returns what breaks it.

-- name: verify_acknowledged
-- Only reads. I1: a message has a delivery, unfinished or in the history, unless a person purged it or its time is over.
select 'message ' || m.id from todoku_message m
 where not exists (select from todoku_delivery d where d.message_seq = m.seq)
   and not exists (select from todoku_history h where h.message_seq = m.seq)
   and not exists (select from todoku_audit a where a.target = 'message:' || m.id)
   and m.created_at > todoku_now() - make_interval(secs => :history_ttl)
 limit :most

-- name: verify_message
-- Only reads. I1: what is on its way has a message to bring.
select 'delivery ' || d.id from todoku_delivery d
 where not exists (select from todoku_message m where m.seq = d.message_seq) limit :most

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
 where l.scope like 'publish:%' and l.expires_at = 'infinity' and l.message_id is not null
   and not exists (select from todoku_message m where m.id = l.message_id)
 limit :most

-- name: verify_owner
-- Only reads. I3: what runs has an owner, and nothing else has one.
select 'delivery ' || id from todoku_delivery
 where (status = 'sending') <> (worker_id is not null) limit :most

-- name: verify_orphan
-- Only reads. I3: no delivery is left to an owner without a lease; a reclaim frees them within seconds.
select 'delivery ' || d.id from todoku_delivery d
 where d.status = 'sending' and not exists (select from todoku_worker w where w.id = d.worker_id) limit :most

-- name: verify_lane_owner
-- Only reads. I3, I10: what runs of a lane belongs to the worker that has the lane.
select 'delivery ' || d.id from todoku_delivery d
  left join todoku_lane l on l.id = d.lane
 where d.status = 'sending' and d.lane is not null and l.worker_id is distinct from d.worker_id limit :most

-- name: verify_epoch
-- Only reads. I4: the epoch rises with every claim, and past every attempt on record.
select 'delivery ' || d.id from todoku_delivery d
 where d.epoch < d.attempts
    or exists (select from todoku_attempt a where a.delivery_id = d.id and a.epoch >= d.epoch)
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
 where m.key_hash is not null and h.finished_at > todoku_now() - make_interval(secs => :ledger_ttl)
   and not exists (select from todoku_ledger l
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
   and not exists (select from todoku_lane l where l.id = d.lane)
 limit :most

-- name: verify_parked
-- Only reads. I10: a lane is parked by a dead letter, which a person can replay or purge.
select 'lane ' || l.id from todoku_lane l
 where l.parked and not exists (
    select from todoku_delivery d
     where d.lane = l.id and d.status = 'aborted' and coalesce(d.reason, '') <> all (:gone::text[]))
 limit :most

-- name: verify_lane_time
-- Only reads. I10: a lane is looked at no later than its first delivery is due.
select 'lane ' || l.id from todoku_lane l
 cross join lateral (select next_run_at from todoku_delivery d
                      where d.lane = l.id and d.status <> 'aborted' order by d.id limit 1) head
 where l.worker_id is null and not l.parked
   and l.ready_at > greatest(head.next_run_at, todoku_now()) + interval '1 second'
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
   and not exists (select from todoku_gate g where g.id = d.gate)
   and not exists (select from todoku_gate_call c where c.gate = d.gate)
 limit :most

-- name: verify_gate_running
-- Only reads. A gate knows how many of its deliveries run: more would let too few start, fewer too many.
select 'gate ' || g.id from todoku_gate g
 where g.running <> (select count(*) from todoku_delivery d where d.gate = g.id and d.status = 'sending')
 limit :most

-- name: verify_gate_time
-- Only reads. A gate is looked at no later than its first delivery is due and its rate allows.
select 'gate ' || g.id from todoku_gate g
 where g.ready_at > todoku_now() + interval '1 second' and (g.tat is null or g.ready_at > g.tat + interval '1 second')
   and exists (select from todoku_delivery d where d.gate = g.id and d.status in ('pending', 'failed') and d.lost = 0
                  and d.next_run_at < g.ready_at - interval '1 second' and d.expires_at > todoku_now())
   and not exists (select from todoku_gate_call c where c.gate = g.id)
 limit :most

-- name: verify_tried
-- Only reads. What was written before attempts knew their message knows none.
select 'delivery ' || d.id || ' epoch ' || a.epoch from todoku_attempt a join todoku_delivery d on d.id = a.delivery_id
 where a.message_seq <> d.message_seq limit :most

-- name: verify_endpoint
-- Only reads.
select 'endpoint ' || e.url from todoku_endpoint e
 where e.group_name is not null and not exists (select from todoku_group g where g.name = e.group_name) limit :most

-- name: verify_clock
-- Only reads. I12: the database's clock decided, so nothing was changed in the future.
select 'delivery ' || id from todoku_delivery
 where updated_at > todoku_now() + interval '5 seconds' limit :most

------------------------------------------------------------------------------------------- copying

-- name: tables
-- Only reads: every table of todoku with its columns, their types, and their place in the primary key (0: none).
select c.relname, a.attname, format_type(a.atttypid, null),
       coalesce(array_position(string_to_array(i.indkey::text, ' '), a.attnum::text), 0)
  from pg_class c
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
  left join pg_index i on i.indrelid = c.oid and i.indisprimary
 where c.relnamespace = (select relnamespace from pg_class where oid = 'todoku_migration'::regclass)
   and c.relname like 'todoku!_%' escape '!' and c.relkind in ('r', 'p') and not c.relispartition
 order by c.relname, a.attnum

-- name: leases
-- Only reads: who may be running something now.
select name from todoku_worker where expires_at > todoku_now() order by name

-- name: migrated_at
-- Only reads. Microseconds: two databases are hardly ever made in the same one.
select (extract(epoch from applied_at) * 1000000)::bigint from todoku_migration order by version

-- name: identities
-- Only reads: the last id given away, of rows that are gone too.
select c.relname, coalesce(pg_sequence_last_value(pg_get_serial_sequence(c.oid::regclass::text, a.attname)), 0)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attidentity <> ''
 where c.relnamespace = (select relnamespace from pg_class where oid = 'todoku_migration'::regclass)
   and c.relname like 'todoku!_%' escape '!'
 order by c.relname

-- name: set_identity
-- Only raised, by its caller: an id that was given away never comes again.
select setval(pg_get_serial_sequence(c.oid::regclass::text, a.attname), :last)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attidentity <> ''
 where c.relnamespace = (select relnamespace from pg_class where oid = 'todoku_migration'::regclass)
   and c.relname = :name

-- name: history_days
-- Only reads: days since 1970. What lies in the future has no day.
select distinct floor(extract(epoch from finished_at) / 86400)::bigint
  from todoku_history where finished_at <= todoku_now() and isfinite(finished_at) order by 1 desc limit :most

-- name: copy_begun
-- Only reads: the table is there as long as a copy into this database is not finished.
select count(to_regclass('todoku_copy'))

-- name: copy_begin
-- In the transaction that found the database empty, so two copies do not both begin.
create table todoku_copy (name text primary key, done bigint not null, origin text not null)

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

-- name: place
-- Only reads. The server, the database and the table, whatever they are called; an empty database has no table yet.
select system_identifier::text || '/' || (select oid from pg_database where datname = current_database()) || '/' ||
       coalesce(to_regclass('todoku_migration')::oid::text, '')
  from pg_control_system()

-- name: failed_events_there
-- Only reads: the table is the application's, which may have made it itself, and who may write to it need not be
-- allowed to make one.
select 1 where to_regclass(cast(:bare as text)) is not null

-- name: failed_events_lock
-- Two who make the same table at once would be in each other's way; the lock ends with the transaction.
select 1 from pg_advisory_xact_lock(hashtext('todoku_failed_events'))

-- name: failed_events_create
-- Changes nothing where the table is there already.
create table if not exists failed_webhook_events (
    event_id text primary key,
    payload text not null,
    error text not null,
    created_at timestamptz not null,
    message_id text not null,
    dlq_id text not null,
    request text not null,
    rerun_at timestamptz,
    rerun_by text,
    rerun_why text)

-- name: failed_events_now
-- Only reads the clock that the other queries on this table write.
select cast(statement_timestamp() as text)

-- name: failed_event_add
-- The event id decides: seen twice is seen. One that was sent again and is among the dead letters at a later look has
-- died again, and is open again. The dead letters of one message are numbered: a hook that was told of an earlier death
-- and runs late leaves the later one.
insert into failed_webhook_events as f (event_id, payload, error, created_at, message_id, dlq_id, request)
values (cast(:event_id as text), cast(:payload as text), cast(:error as text), statement_timestamp(),
        cast(:message_id as text), cast(:dlq_id as text), cast(:request as text))
    on conflict (event_id) do update
   set payload = excluded.payload, error = excluded.error, message_id = excluded.message_id,
       dlq_id = excluded.dlq_id, request = excluded.request, rerun_at = null, rerun_by = null, rerun_why = null
 where (f.dlq_id <> excluded.dlq_id or f.rerun_at < cast(cast(:looked_at as text) as timestamptz))
   and (f.message_id <> excluded.message_id
        or (length(f.dlq_id), f.dlq_id) <= (length(excluded.dlq_id), excluded.dlq_id))
returning 1

-- name: failed_event
-- Only reads.
select event_id, payload, error, to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), message_id, dlq_id, request,
       to_char(rerun_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), rerun_by, rerun_why
  from failed_webhook_events where event_id = cast(:event_id as text)

-- name: failed_event_rerun
-- Says who sent it again, after it was; who does so twice overwrites the first. One that died anew meanwhile is
-- another dead letter, and stays open.
update failed_webhook_events
   set rerun_at = statement_timestamp(), rerun_by = cast(:rerun_by as text), rerun_why = cast(:rerun_why as text)
 where event_id = cast(:event_id as text) and dlq_id = cast(:dlq_id as text)
returning 1
