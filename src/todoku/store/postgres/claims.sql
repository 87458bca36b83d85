-- Claims: finding the places where deliveries wait, and taking them.

-- name: served
-- A fragment: a worker that serves these destinations (null: all) serves this one; a scheme stands for every host.
(:destinations::text[] is null or destination = any (:destinations::text[])
    or left(destination, strpos(destination || '://', '://') + 2) = any (:destinations::text[]))

-- name: waiting
-- Only reads. Skips from one (queue, destination, priority) to the next in the index, however many rows each has. What it
-- says of the first row of each is where a claim may begin: it need not pass over finished rows that are still there.
with recursive groups as (
    (select queue, destination, priority, next_run_at from todoku_delivery
      where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
      order by queue, destination, priority, next_run_at limit 1)
    union all
    select later.* from groups g cross join lateral (
        select queue, destination, priority, next_run_at from todoku_delivery d
         where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and (d.queue, d.destination, d.priority) > (g.queue, g.destination, g.priority)
         order by queue, destination, priority, next_run_at limit 1) later
)
select queue, destination, priority, date_part('epoch', next_run_at) as soonest from groups
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
select 'group', queue, destination, priority, soonest from ({waiting}) waiting
union all select 'suspect', queue, destination, 0, 0 from ({waiting_suspects}) suspects
union all select 'lane', queue, destination, 0, 0 from ({waiting_lanes}) lanes
union all select 'gate', queue, destination, 0, seconds from ({waiting_gates}) gates

-- name: claim
-- Rows are locked before they change, in a materialized CTE, so never more than requested. Then the worker row is
-- locked FOR KEY SHARE: a worker whose lease was ended claims nothing, and ending a lease waits for this commit (H2).
-- If nothing is due, nothing is locked: an idle poll writes nothing and waits for no disk.
-- A locked row stays where it is until the commit, so the update finds it by its ctid, without a second index. A row
-- that changed between this statement's snapshot and its lock is a version the snapshot does not show: it is not taken,
-- and a later claim finds it. A row that is locked may be listed since: `listed` looks again.
with {slice}, {named}, due as materialized (
    select d.ctid, d.id, d.epoch from slice s cross join lateral (
        select ctid, id, epoch {due}) d
     limit :most
), {listed}, {me}, taken as (
    update todoku_delivery d set {take}
     where ctid = any (array(select ctid from due where {unlisted})) and exists (select from me)
    returning {taken_columns}
)
select {claimed}

-- name: claim_list
-- As `claim`, for a worker that drains a backlog: deliveries to these destinations that were never claimed, and do not
-- expire, are named in one row and stay as they are, if there are enough of them, and every live worker knows lists. The
-- others are taken one by one. Of a listed delivery only what differs from others of its place is sent: its columns
-- from `epoch` on are null, because they are known (epoch 0, first attempt). Rows are in no order: the caller sorts them.
-- Whoever made a list took what was due at the place of its last delivery, up to that delivery's time. So a claim from a
-- remembered position begins behind the last list that ends at its place, and need not pass over what these lists name
-- one by one; a scan (no id to begin behind) does, and finds what others left. A list is passed over one by one, too, if its
-- last delivery has changed, because it may be due at another time, or is in a lane, because claims of lanes do not go by
-- time. All this only saves time: `listed` is what keeps a delivery from being claimed twice.
with {slice}, ends as materialized (
    select l.ids, d.* from (select ids from todoku_claim_list order by id) l
      left join lateral (select queue, destination, priority, next_run_at, id from todoku_delivery
                          where id = l.ids[cardinality(l.ids)] and lane is null and epoch = 0 and worker_id is null
                          limit 1) d on true
), place as materialized (
    select s.queue, s.destination, s.priority, s.most, s.place, s.destination = any (:listable::text[]) as lists,
           s.after_id > 0 as remembered, coalesce(e.id, s.after_id) as after_id,
           coalesce(date_part('epoch', e.next_run_at), s.after_at) as after_at
      from slice s left join lateral (
        select next_run_at, id from ends
         where s.after_id > 0 and queue = s.queue and destination = s.destination and priority = s.priority
           and (next_run_at, id) > (to_timestamp(s.after_at), s.after_id)
         order by next_run_at desc, id desc limit 1) e on true
     order by s.place
), named as materialized (
    select unnest(array(
        select unnest(ids) from ends e
         where not exists (select from place p
                            where p.remembered and p.queue = e.queue and p.destination = e.destination
                              and p.priority = e.priority))) as id
), due as materialized (
    select d.ctid, d.id, d.epoch, d.message_seq, d.max_attempts, d.next_run_at, d.timeout, s.place,
           s.lists and d.untouched as lists, s.destination, null::smallint as priority
      from place s cross join lateral (
        select d.ctid, d.id, d.epoch, d.message_seq, d.max_attempts, d.next_run_at, d.timeout, {untouched} as untouched
          {due}) d
     limit :most
), {listed}, {me}, {list}, updated as (
    update todoku_delivery d set {take}
     where ctid = any (array(select ctid from due where {by_row})) and exists (select from me)
    returning null::bigint as place, {updated_columns}
), {list_taken}
select {list_claimed}

-- name: list
-- A fragment: one row that names what may be listed, if it is enough, and if every live worker knows lists.
list as (
    insert into todoku_claim_list (worker_id, ids, first_id, last_id, claimed_at)
    select :worker, array_agg(id), min(id), max(id), todoku_now()
      from due where {unlisted} and lists and exists (select from me)
       and not exists (select from todoku_worker w where not w.lists and w.expires_at > todoku_now())
    having count(*) >= :fewest
    returning id
)

-- name: untouched
-- A fragment: whether a delivery may be listed, if its destination may: it was never claimed, never replayed, is at no gate
-- and does not expire. So all that a claim says of it is known without asking.
d.epoch = 0 and d.attempts = 0 and d.snoozes = 0 and d.replay_count = 0 and d.lost = 0 and d.gate is null
               and d.expires_at = 'infinity'

-- name: by_row
-- A fragment: what is due, and not listed by this claim.
{unlisted} and not (lists and exists (select from list))

-- name: updated_columns
-- A fragment: what `list_taken` needs of a row that was taken by itself.
d.id, d.message_seq, d.max_attempts, d.next_run_at, d.timeout, d.epoch, d.destination, d.queue,
              d.priority, d.attempts, d.snoozes, d.replay_count, d.expires_at, d.lost, d.gate

-- name: list_taken
-- A fragment: the rows of a claim by list, those that were taken by themselves first.
taken as (
    select null::bigint as list, u.* from updated u
    union all
    select (select id from list), d.place, d.id, d.message_seq, d.max_attempts, d.next_run_at, d.timeout,
           null, d.destination, null, d.priority, null, null, null, null, null, null
      from due d where {unlisted} and lists and exists (select from list)
)

-- name: list_claimed
-- A fragment: the columns that a claim by list returns. Each row finds its message by primary key.
t.list, t.place, t.id, t.message_seq, m.id::text, m.topic, m.key, m.payload::text, m.payload_bytes,
       m.content_type, m.headers::text, t.max_attempts, date_part('epoch', t.next_run_at),
       date_part('epoch', m.created_at), t.timeout, m.key_hash, m.digest,
       case when m.key_hash is not null then (
           select array[l.state, l.digest] from todoku_ledger l
            where l.key_hash = m.key_hash and l.scope = 'effect:' || t.destination) end, t.priority,
       t.epoch, case when t.list is null then t.destination end, t.queue, t.attempts, t.snoozes, t.replay_count,
       case when t.expires_at < 'infinity' then date_part('epoch', t.expires_at) end, t.lost, t.gate
  from taken t
  left join lateral (select * from todoku_message m where m.seq = t.message_seq offset 0) m on true

-- name: slice
-- A fragment: the places to claim from that are neither paused nor behind an open breaker.
slice as materialized (
    select s.* from unnest(:queues::text[], :destinations::text[], :priorities::smallint[],
                          :after_ats::float8[], :after_ids::bigint[], :mosts::int[])
           with ordinality as s(queue, destination, priority, after_at, after_id, most, place)
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     order by place
)

-- name: named
-- A fragment: the deliveries that the lists of all workers name. As one array the planner takes them for few, always.
-- It guesses the rows of this small table from its size on disk, which grows with every list until it is vacuumed; a
-- guess of some hundred thousand would be too many to hash, and each delivery would be compared with all of them.
named as materialized (
    select unnest(array(select unnest(ids) from (select ids from todoku_claim_list order by id) l)) as id
)

-- name: due
-- A fragment: what is due at a place and in no list that the snapshot shows, locked, from the remembered position on.
from todoku_delivery d
         where queue = s.queue and destination = s.destination and priority = s.priority
           and status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and next_run_at <= todoku_now() and (next_run_at, id) > (to_timestamp(s.after_at), s.after_id)
           and expires_at > todoku_now() and (epoch > 0 or id not in (select id from named))
         order by next_run_at, id limit s.most for update skip locked

-- name: listed
-- A fragment: which of the locked rows another claim has listed, by a snapshot that is taken after the locks.
listed as materialized (select todoku_listed(array(select id from due where epoch = 0)) as ids)

-- name: unlisted
-- A fragment: a row that no list names. Only one that was never claimed can be listed.
(epoch > 0 or id <> all ((select ids from listed)::bigint[]))

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

-- name: write_out_ids
-- The deliveries are locked by this transaction, so no claim lists them any more; this statement sees every list that was
-- committed before. They then say by themselves what their list says, with the same epoch: the token of their worker
-- stays what it is. Returns those that were listed.
with listed as materialized (
    select l.worker_id, l.claimed_at, named.id
      from (select * from todoku_claim_list
             where first_id <= (select max(id) from unnest(:ids::bigint[]) as w(id))
               and last_id >= (select min(id) from unnest(:ids::bigint[]) as w(id))
             order by id) l
     cross join lateral unnest(l.ids) as named(id)
      join unnest(:ids::bigint[]) as asked(id) on asked.id = named.id
)
update todoku_delivery d set {write_out} from listed l
 where d.id = any (array(select id from listed)) and d.id = l.id and d.epoch = 0 and d.worker_id is null
returning d.id

-- name: write_out
-- A fragment: what a list says of a delivery, in the delivery itself.
status = 'sending', worker_id = l.worker_id, claimed_at = l.claimed_at, updated_at = todoku_now(),
       attempts = d.attempts + 1

-- name: write_out_lists
-- Writes out the lists of a worker that are so old, or (null) of all workers without a lease, and removes them. A row that
-- another transaction has locked is left, and so is its list: a later round finds both.
with aged as materialized (
    select l.* from todoku_claim_list l
     where case when :worker::uuid is null then not exists (select from todoku_worker w where w.id = l.worker_id)
                else l.worker_id = :worker::uuid and l.claimed_at <= todoku_now() - make_interval(secs => :age) end
     order by l.id
), there as materialized (
    select o.id as list, d.id from aged o cross join lateral unnest(o.ids) as named(id) cross join lateral (
        select id from todoku_delivery where id = named.id and epoch = 0 and worker_id is null limit 1) d
), held as materialized (
    select t.list, d.id from there t cross join lateral (
        select id from todoku_delivery where id = t.id and epoch = 0 and worker_id is null limit 1
           for update skip locked) d
), written as (
    update todoku_delivery d set {write_out} from held h join aged l on l.id = h.list
     where d.id = any (array(select id from held)) and d.id = h.id
)
delete from todoku_claim_list
 where id = any (array(select id from aged except select list from there where id <> all (array(select id from held))))
returning id

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
