-- Publishing: a message with its deliveries.
-- These run on the caller's connection, with any driver and codecs: each parameter is text, cast as text first.

-- name: publish_lock_destinations
-- Taken before the locks of lanes, in key order. Shared: excludes only a publisher of very many lanes.
select pg_advisory_xact_lock_shared(lock) from unnest(cast(cast(:locks as text) as bigint[])) as s(lock)

-- name: publish_lock_destinations_whole
-- Instead of one lock for each lane: there are too many for the lock table.
select pg_advisory_xact_lock(lock) from unnest(cast(cast(:locks as text) as bigint[])) as s(lock)

-- name: publish_lock_lanes
-- Held until the caller commits, and ids are assigned after it: so ids of a lane follow commit order (I10).
select pg_advisory_xact_lock(lock) from unnest(cast(cast(:locks as text) as bigint[])) as s(lock)

-- name: publish_lanes
-- The lane's lock is held: no settle deletes the lane between this insert and the commit.
insert into todoku_lane (id, queue, destination, ready_at)
select distinct on (lane) lane, queue, destination, todoku_now()
  from json_to_recordset(cast(cast(:lanes as text) as json)) as s(lane bigint, queue text, destination text)
 order by lane
    on conflict (id) do nothing

-- name: publish_gate_calls
-- Only appends: publishers and claims never wait for each other. Claims process the committed calls.
insert into todoku_gate_call (queue, destination, gate, key)
select queue, destination, gate, key
  from json_to_recordset(cast(cast(:gates as text) as json)) as s(gate bigint, queue text, destination text, key text)

-- name: publish
-- One statement: a message without its deliveries cannot exist (I1). Times are the statement's (H19). NOTIFY takes a
-- lock of the whole server at commit, so it is sent only while a worker is recorded as idle. What messages have in
-- common is sent once, as a kind; of an array that no message needs, there are no rows, and its column is null.
with draft as materialized (
    select nextval('todoku_message_seq_seq') as seq, s.*
      from rows from (unnest(cast(cast(:ids as text) as uuid[])), unnest(cast(cast(:kinds as text) as int[])),
                      json_array_elements(cast(cast(:payloads as text) as json)),
                      json_array_elements_text(cast(cast(:payloads_bytes as text) as json)),
                      json_array_elements_text(cast(cast(:key_hashes as text) as json)),
                      json_array_elements_text(cast(cast(:digests as text) as json)))
           as s(id, kind, payload, payload_bytes, key_hash, digest)
), message as (
    insert into todoku_message (seq, id, topic, type, key, payload, payload_bytes, content_type, headers, labels,
                                scope, key_hash, digest, created_at)
    select draft.seq, draft.id, s.topic, s.type, s.key, case when draft.payload_bytes is null then draft.payload end,
           decode(draft.payload_bytes, 'base64'), s.content_type, s.headers, s.labels, s.scope, draft.key_hash,
           draft.digest, todoku_now()
      from draft
      join json_to_recordset(cast(cast(:common as text) as json))
           as s(kind int, topic text, type text, key text, content_type text, headers json, labels json, scope text)
           using (kind)
), delivery as (
    insert into todoku_delivery (message_seq, destination, queue, lane, gate, priority, status, max_attempts, timeout,
                                 next_run_at, expires_at, updated_at, reason)
    select draft.seq, s.destination, s.queue, s.lane, s.gate, s.priority,
           case when s.dead is null then 'pending' else 'aborted' end, s.max_attempts, s.timeout,
           coalesce(to_timestamp(s.at), todoku_now()) + make_interval(secs => s.delay),
           coalesce(todoku_now() + make_interval(secs => s.expires), 'infinity'), todoku_now(), s.dead
      from draft
      join json_to_recordset(cast(cast(:legs as text) as json))
           as s(kind int, destination text, queue text, lane bigint, gate bigint, priority int, max_attempts int,
                timeout float8, delay float8, at float8, expires float8, dead text)
           using (kind)
     order by draft.seq
)
-- NOTIFY takes a lock of the whole server at commit, so notice is given only while a worker says that it sleeps.
-- The flag is a sub-select: a plan made for `false` would be so cheap that every execution was planned anew.
select date_part('epoch', todoku_now()),
       (select count(pg_notify('todoku', ''))
          from (select from todoku_worker
                 where (select cast(:notify as boolean)) and state = 'idle' and expires_at > todoku_now() limit 1) idle)

-- name: publish_one
-- As `publish`, for one message with one delivery: a record is read for a quarter less than arrays and kinds.
with draft as materialized (
    select nextval('todoku_message_seq_seq') as seq, s.*
      from json_to_record(cast(cast(:draft as text) as json))
           as s(id uuid, topic text, type text, key text, payload json, payload_bytes text, content_type text,
                headers json, labels json, scope text, key_hash text, digest text, destination text, queue text,
                lane bigint, gate bigint, priority int, max_attempts int, timeout float8, delay float8, at float8,
                expires float8, dead text)
), message as (
    insert into todoku_message (seq, id, topic, type, key, payload, payload_bytes, content_type, headers, labels,
                                scope, key_hash, digest, created_at)
    select seq, id, topic, type, key, case when payload_bytes is null then coalesce(payload, 'null') end,
           decode(payload_bytes, 'base64'), content_type, headers, labels, scope, key_hash, digest, todoku_now()
      from draft
), delivery as (
    insert into todoku_delivery (message_seq, destination, queue, lane, gate, priority, status, max_attempts, timeout,
                                 next_run_at, expires_at, updated_at, reason)
    select seq, destination, queue, lane, gate, priority, case when dead is null then 'pending' else 'aborted' end,
           max_attempts, timeout, coalesce(to_timestamp(at), todoku_now()) + make_interval(secs => delay),
           coalesce(todoku_now() + make_interval(secs => expires), 'infinity'), todoku_now(), dead
      from draft
)
-- NOTIFY takes a lock of the whole server at commit, so notice is given only while a worker says that it sleeps.
-- The flag is a sub-select: a plan made for `false` would be so cheap that every execution was planned anew.
select date_part('epoch', todoku_now()),
       (select count(pg_notify('todoku', ''))
          from (select from todoku_worker
                 where (select cast(:notify as boolean)) and state = 'idle' and expires_at > todoku_now() limit 1) idle)

-- name: publish_deduplicated
-- As `publish`, for messages that have keys for a time, and stores those whose keys are free: one statement, so a key
-- without its message cannot exist, nor a message without its key (I1). As in publish_reserve_for a second publisher waits
-- for the first one's commit, and keys are sorted, so that two cannot deadlock. It returns which messages were not stored,
-- and not who has their keys: its snapshot is too old for that (H14). Headers are sent for each message.
with draft as materialized (
    select nextval('todoku_message_seq_seq') as seq, s.*
      from rows from (unnest(cast(cast(:ids as text) as uuid[])), unnest(cast(cast(:kinds as text) as int[])),
                      json_array_elements(cast(cast(:payloads as text) as json)),
                      json_array_elements(cast(cast(:headers as text) as json)),
                      json_array_elements_text(cast(cast(:key_hashes as text) as json)),
                      json_array_elements_text(cast(cast(:digests as text) as json)))
           as s(id, kind, payload, headers, key_hash, digest)
), entry as (
    insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at, expires_at)
    select s.scope, draft.key_hash, draft.digest, 'accepted', draft.id, todoku_now(), todoku_now(),
           todoku_now() + s.lasts * interval '1 second'
      from draft
      join json_to_recordset(cast(cast(:reserved as text) as json)) as s(kind int, scope text, lasts float8)
           using (kind)
     order by s.scope, draft.key_hash
        on conflict (scope, key_hash) do update
           set digest = excluded.digest, message_id = excluded.message_id, created_at = excluded.created_at,
               updated_at = excluded.updated_at, expires_at = excluded.expires_at, state = excluded.state,
               http_status = null, response = null
         where todoku_ledger.expires_at <= excluded.created_at
    returning message_id
), fresh as materialized (
    select draft.* from draft join entry on entry.message_id = draft.id
), message as (
    insert into todoku_message (seq, id, topic, type, key, payload, content_type, headers, created_at)
    select fresh.seq, fresh.id, s.topic, s.type, s.key, fresh.payload, s.content_type, fresh.headers, todoku_now()
      from fresh
      join json_to_recordset(cast(cast(:common as text) as json))
           as s(kind int, topic text, type text, key text, content_type text)
           using (kind)
), delivery as (
    insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts, timeout,
                                 next_run_at, expires_at, updated_at, reason)
    select fresh.seq, s.destination, s.queue, s.priority,
           case when s.dead is null then 'pending' else 'aborted' end, s.max_attempts, s.timeout,
           coalesce(to_timestamp(s.at), todoku_now()) + make_interval(secs => s.delay),
           coalesce(todoku_now() + make_interval(secs => s.expires), 'infinity'), todoku_now(), s.dead
      from fresh
      join json_to_recordset(cast(cast(:legs as text) as json))
           as s(kind int, destination text, queue text, priority int, max_attempts int, timeout float8, delay float8,
                at float8, expires float8, dead text)
           using (kind)
     order by fresh.seq
)
-- NOTIFY as in `publish`. Of what was not stored there are a few, if any: their ids are texts.
select date_part('epoch', todoku_now()),
       array(select cast(draft.id as text) from draft where not exists (select from fresh where fresh.id = draft.id)),
       (select count(pg_notify('todoku', ''))
          from (select from todoku_worker
                 where (select cast(:notify as boolean)) and state = 'idle' and expires_at > todoku_now() limit 1) idle)

-- name: publish_labels
-- Only appends, in the transaction that stored the messages, so no other transaction has rows of theirs. What is too long
-- for an index stays with the message alone.
insert into todoku_label (label, message_seq)
select distinct l.label, m.seq
  from todoku_message m cross join lateral json_array_elements_text(m.labels) l(label)
 where m.id = any (cast(cast(:ids as text) as uuid[])) and length(l.label) <= 512

-- name: publish_reopen
-- Only `aborted` rows change, under the row lock: of two publishers one reopens, with its audit row (H15). A run whose
-- undo has begun stays what it is (R5).
with dead as materialized (
    select d.id, d.destination, d.lane, d.gate, d.queue, m.key, m.key_hash, m.digest
      from todoku_message m join todoku_delivery d on d.message_seq = m.seq
     where m.id = any (cast(cast(:message_ids as text) as uuid[])) and d.status = 'aborted'
       and not exists (select from todoku_step s where s.message_seq = m.seq and s.step_key = '~undo' offset 0)
     order by d.id for update of d
), reopened as (
    update todoku_delivery d
       set status = 'pending', epoch = epoch + 1, attempts = 0, lost = least(lost, 1), snoozes = 0,
           replay_count = replay_count + 1, reason = null, error = null, fingerprint = null,
           cancel_requested = false, next_run_at = todoku_now(), expires_at = 'infinity', updated_at = todoku_now()
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

-- name: publish_data_keys
-- Together with the messages it encrypts, in the caller's transaction. There is no unique key, so no publisher waits
-- for another's commit; a committed key is not stored again.
insert into todoku_data_key (id, day, master_key_id, wrapped, created_at)
select id, day, master_key_id, decode(wrapped, 'base64'), todoku_now()
  from json_to_recordset(cast(cast(:keys as text) as json))
       as s(id uuid, day text, master_key_id text, wrapped text)
 where not exists (select from todoku_data_key k where k.id = s.id offset 0)
