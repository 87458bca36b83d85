-- Claims: finding the places where deliveries wait, and taking them.

-- name: claimed
-- A fragment: the columns every claim returns, with their values after the claim.
select t.id, t.epoch + 1, t.message_seq, m.id, m.topic, m.key, m.payload, m.payload_bytes, m.content_type,
       m.headers, t.destination, t.queue, t.priority, t.lane, t.gate, t.attempts + 1, t.max_attempts, t.lost, t.snoozes,
       t.replay_count, t.next_run_at / 1e6, m.created_at / 1e6,
       case when t.expires_at < 9223372036854775807 then t.expires_at / 1e6 end, t.timeout,
       m.key_hash, m.digest, e.state, e.digest

-- name: open
-- A fragment: the place is not paused and its breaker is not open; checked once for each place.
not exists (select 1 from todoku_queue q where q.name = json_extract(p.value, '$.queue') and q.paused = 1)
   and not exists (select 1 from todoku_destination b
                    where b.name = json_extract(p.value, '$.destination') and b.open_until > :now)

-- name: live
-- A fragment: the worker's lease has not ended (H2).
exists (select 1 from todoku_worker w where w.id = :worker and w.expires_at > :now)

-- name: due
-- A fragment: the due rows of one slice, in order. The index is named, so that statistics cannot change the plan.
-- Conditions on the whole slice are checked before the search, not row by row: a million paused rows are not read
-- (H24).
 where t.queue = (select :queue where {live}
                     and not exists (select 1 from todoku_queue q where q.name = :queue and q.paused = 1)
                     and not exists (select 1 from todoku_destination b
                                      where b.name = :destination and b.open_until > :now))
   and t.destination = :destination and t.priority = :priority
   and t.status in ('pending', 'failed') and t.lane is null and t.lost = 0 and t.gate is null
   and t.next_run_at >= :after_at and t.next_run_at <= :now
   and (t.next_run_at > :after_at or t.id > :after_id) and t.expires_at > :now
 order by t.next_run_at, t.id limit :most

-- name: served
-- A fragment: a worker that serves these destinations (null: all) serves this one; a scheme stands for every host.
(:destinations is null or destination in (select value from json_each(:destinations))
    or substr(destination, 1, instr(destination || '://', '://') + 2) in (select value from json_each(:destinations)))

-- name: waiting
-- Only reads. Skips from one (queue, destination, priority) to the next in the index, however many rows each has: for
-- SQLite `>` on a row value starts at `=`, so the skip goes to the maximal time; `+` keeps type affinity from
-- disabling the index.
with recursive groups(queue, destination, priority, next_run_at) as (
    select * from (select queue, destination, priority, next_run_at from todoku_delivery indexed by todoku_delivery_due
      where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
      order by queue, destination, priority, next_run_at limit 1)
    union all
    select d.queue, d.destination, d.priority, d.next_run_at from groups g join todoku_delivery d
        on d.id = (select id from todoku_delivery n indexed by todoku_delivery_due
                    where n.status in ('pending', 'failed') and n.lane is null and n.lost = 0 and n.gate is null
                      and (n.queue, n.destination, n.priority, n.next_run_at)
                          > (+g.queue, +g.destination, +g.priority, 9223372036854775807)
                    order by n.queue, n.destination, n.priority, n.next_run_at limit 1)
)
select queue, destination, priority, next_run_at / 1e6 as soonest from groups
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

-- name: waiting_work
-- Only reads; the four kinds of waiting work as one statement.
select 'group', queue, destination, priority, soonest from ({waiting})
union all select 'suspect', queue, destination, 0, 0 from ({waiting_suspects})
union all select 'lane', queue, destination, 0, 0 from ({waiting_lanes})
union all select 'gate', queue, destination, 0, seconds from ({waiting_gates})

-- name: write_out_ids
-- Changes nothing: a claim on SQLite is never a list.
select id from todoku_delivery where false and id in (select value from json_each(:ids))

-- name: take
-- A fragment: the columns a claim sets.
update todoku_delivery
   set status = 'sending', worker_id = :worker, claimed_at = :now, updated_at = :now,
       attempts = attempts + 1, epoch = epoch + 1

-- name: claim
-- Only reads; claim_taken takes the rows, and no other connection writes between the two. All rows are returned as one
-- text: for each fetched row sqlite3 releases and takes the interpreter's lock, which costs 100 µs beside a busy event
-- loop.
select '[' || coalesce(group_concat(row), '') || ']' from (
    select {packed} as row from todoku_delivery t indexed by todoku_delivery_due {claimed_from} {due})

-- name: claim_taken
-- Takes the rows of all slices at once. They were read in this transaction, and the worker's lease is live.
{take} where id in (select value from json_each(:ids))

-- name: packed
-- A fragment: what `claimed` has, as a JSON array in the order of PackedRow, times in microseconds, bytes as hexadecimal
-- digits. Large messages are left out: the text must not grow without bound.
case when {small}
     then json_array({packed_columns}, m.payload,
                     case when m.payload_bytes is not null then hex(m.payload_bytes) end, m.headers)
     else json_array({packed_columns}) end

-- name: packed_columns
-- A fragment: all but the message's contents, and what is the same in every row that a plain claim may take.
t.id, t.epoch + 1, t.message_seq, m.id, m.topic, m.key, m.content_type, t.destination, t.queue, t.priority,
       t.attempts + 1, t.max_attempts, t.snoozes, t.replay_count, t.next_run_at, m.created_at,
       case when t.expires_at < 9223372036854775807 then t.expires_at end, t.timeout,
       m.key_hash, m.digest, e.state, e.digest

-- name: small
-- A fragment: the message is small enough to be packed.
coalesce(length(m.payload), 0) + coalesce(length(m.payload_bytes), 0) + coalesce(length(m.headers), 0) <= 16384

-- name: claim_large
-- Only reads, in the transaction of the claim: the messages that were too large to be packed, by primary key.
select m.seq, m.payload, m.payload_bytes, m.headers from todoku_message m
 where m.seq in (select value from json_each(:seqs))

-- name: claimed_from
-- A fragment: each taken row finds its message and effect entry by primary key.
  left join todoku_message m on m.seq = t.message_seq
  left join todoku_ledger e on e.scope = 'effect:' || t.destination and e.key_hash = m.key_hash
