-- Claims: finding the places where deliveries wait, and taking them.

-- name: served
-- A fragment: a worker that serves these destinations (null: all) serves this one; a scheme stands for every host.
(:destinations::text[] is null or destination = any (:destinations::text[])
    or left(destination, strpos(destination || '://', '://') + 2) = any (:destinations::text[]))

-- name: waiting
-- Only reads. Skips from one (queue, destination, priority) to the next in the index, however many rows each has.
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

-- name: waiting_work
-- Only reads; the four kinds of waiting work as one statement, because an idle worker asks for all of them at every poll.
select 'group', queue, destination, priority::float8 from ({waiting}) waiting
union all select 'suspect', queue, destination, 0 from ({waiting_suspects}) suspects
union all select 'lane', queue, destination, 0 from ({waiting_lanes}) lanes
union all select 'gate', queue, destination, seconds from ({waiting_gates}) gates

-- name: claim
-- Rows are locked before they change, in a materialized CTE, so never more than requested. Then the worker row is
-- locked FOR KEY SHARE: a worker whose lease was ended claims nothing, and ending a lease waits for this commit (H2).
-- If nothing is due, nothing is locked: an idle poll writes nothing and waits for no disk.
-- A locked row stays where it is until the commit, so the update finds it by its ctid, without a second index. A row
-- that changed between this statement's snapshot and its lock is a version the snapshot does not show: it is not taken,
-- and a later claim finds it.
with slice as materialized (
    select s.* from unnest(:queues::text[], :destinations::text[], :priorities::smallint[],
                          :after_ats::float8[], :after_ids::bigint[], :mosts::int[])
           with ordinality as s(queue, destination, priority, after_at, after_id, most, place)
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     order by place
), due as materialized (
    select d.ctid from slice s cross join lateral (
        select ctid from todoku_delivery
         where queue = s.queue and destination = s.destination and priority = s.priority
           and status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and next_run_at <= todoku_now() and (next_run_at, id) > (to_timestamp(s.after_at), s.after_id)
           and expires_at > todoku_now()
         order by next_run_at, id limit s.most for update skip locked) d
     limit :most
), {me}, taken as (
    update todoku_delivery d set {take}
     where ctid = any (array(select ctid from due)) and exists (select from me)
    returning {taken_columns}
)
select {claimed}

-- name: me
-- A fragment: the worker's live row, locked so that its lease cannot be ended meanwhile, if there is anything to take.
me as materialized (
    select id from todoku_worker
     where id = :worker and expires_at > todoku_now() and exists (select from due) for key share
)

-- name: taken
-- A fragment: what a claim does to the rows whose ids it has locked.
taken as (
    update todoku_delivery d set {take}
     where id = any (array(select id from due)) and exists (select from me)
    returning {taken_columns}
)

-- name: take
-- A fragment: the columns a claim sets.
status = 'sending', worker_id = :worker, claimed_at = todoku_now(), updated_at = todoku_now(),
           attempts = attempts + 1, epoch = epoch + 1

-- name: taken_columns
-- A fragment: what `claimed` needs of a taken row.
d.id, d.epoch, d.message_seq, d.destination, d.queue, d.priority, d.lane, d.gate, d.attempts,
              d.max_attempts, d.lost, d.snoozes, d.replay_count, d.next_run_at, d.expires_at, d.timeout

-- name: claimed
-- A fragment: the columns every claim returns. Each row finds its message and effect entry by primary key; without a
-- key there is no entry to look for. Rows are sorted before they are joined: their messages are wide.
t.id, t.epoch, t.message_seq, m.id::text, m.topic, m.key, m.payload::text, m.payload_bytes,
       m.content_type, m.headers::text, t.destination, t.queue, t.priority, t.lane, t.gate, t.attempts,
       t.max_attempts, t.lost, t.snoozes, t.replay_count, date_part('epoch', t.next_run_at),
       date_part('epoch', m.created_at),
       case when t.expires_at < 'infinity' then date_part('epoch', t.expires_at) end, t.timeout,
       m.key_hash, m.digest, e.state, e.digest
  from (select * from taken order by priority desc, next_run_at, id) t
  left join lateral (select * from todoku_message m where m.seq = t.message_seq limit 1) m on true
  left join lateral (select state, digest from todoku_ledger l
                      where m.key_hash is not null and l.scope = 'effect:' || t.destination
                        and l.key_hash = m.key_hash limit 1) e on true
 order by t.priority desc, t.next_run_at, t.id
