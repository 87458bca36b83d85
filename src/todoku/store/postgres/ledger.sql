-- The ledger and the inbox.

-- name: publish_reserve
-- A second publisher waits for the first one's commit and inserts nothing; sorted, so that two publishers cannot
-- deadlock.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at)
select scope, key_hash, digest, 'accepted', id, todoku_now(), todoku_now()
  from json_to_recordset(cast(cast(:entries as text) as json)) as s(scope text, key_hash text, digest text, id uuid)
 order by scope, key_hash
    on conflict (scope, key_hash) do nothing

-- name: publish_reserve_for
-- As publish_reserve, but an expired entry is replaced: of two that try, the second finds it renewed.
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

-- name: publish_reserve_run
-- As publish_reserve_for, but the entry of a run that has not ended is not replaced, however old it is (R8). An entry that
-- this statement waited for belongs to a run that its snapshot does not see, and is not replaced either.
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
       and exists (select from todoku_ledger seen
                    where seen.scope = todoku_ledger.scope and seen.key_hash = todoku_ledger.key_hash
                      and seen.message_id = todoku_ledger.message_id)
       and not exists (select from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                        where m.id = todoku_ledger.message_id and d.status in ('pending', 'sending', 'failed') offset 0)

-- name: publish_reserved
-- A separate statement: it sees the row of the first publisher, which the snapshot of the insert did not (H14). Under
-- repeatable read a caller may see two rows of a key, its own and one pruned since it began: its own goes first.
select l.scope, l.key_hash, l.digest, l.message_id::text, date_part('epoch', coalesce(m.created_at, l.created_at)),
       m.payload::text
  from json_to_recordset(cast(cast(:entries as text) as json)) as s(scope text, key_hash text, id uuid)
 cross join lateral (select * from todoku_ledger
                      where scope = s.scope and key_hash = s.key_hash
                      order by message_id is distinct from s.id limit 1) l
  left join lateral (select payload, created_at from todoku_message where id = l.message_id limit 1) m on true

-- name: publish_unreserve
-- Only entries that this publish reserved: they have its message id.
delete from todoku_ledger l
 using json_to_recordset(cast(cast(:entries as text) as json)) as s(scope text, key_hash text, id uuid)
 where l.scope = s.scope and l.key_hash = s.key_hash and l.message_id = s.id

-- name: once_found
-- A separate statement: it sees the row of the first caller, which the snapshot of the insert did not (H14).
select digest, state, message_id::text, http_status, response::text, date_part('epoch', created_at)
  from todoku_ledger where scope = cast(:scope as text) and key_hash = cast(:key_hash as text)

-- name: once_record
-- Only for the caller that reserved the key: the token is its own.
update todoku_ledger
   set state = cast(:state as text), http_status = cast(cast(:status as text) as integer),
       response = cast(cast(:response as text) as json), updated_at = todoku_now(),
       expires_at = todoku_now() + make_interval(secs => cast(cast(:lasts as text) as float8))
 where scope = cast(:scope as text) and key_hash = cast(:key_hash as text)
   and message_id = cast(cast(:token as text) as uuid)
returning 1

-- name: once_conclude
-- Only an open entry: one that has succeeded or failed stays as it is, and of two concurrent callers one succeeds.
update todoku_ledger
   set state = cast(:state as text), http_status = cast(cast(:status as text) as integer),
       response = cast(cast(:response as text) as json), updated_at = todoku_now(),
       expires_at = todoku_now() + make_interval(secs => cast(cast(:lasts as text) as float8))
 where scope = cast(:scope as text) and key_hash = cast(:key_hash as text) and state = 'accepted'
returning 1

-- name: inbox_once
-- The primary key decides; a second caller waits for the first one's commit and inserts nothing.
insert into todoku_inbox (consumer, message_id, seen_at)
values (cast(:consumer as text), cast(cast(:message_id as text) as uuid), todoku_now())
    on conflict do nothing
returning 1

-- name: inbox_newer
-- The row lock serializes callers of one key; each compares with the value of the one before it.
insert into todoku_inbox_sequence as s (consumer, key, sequence, seen_at)
values (cast(:consumer as text), cast(:key as text), cast(cast(:sequence as text) as bigint), todoku_now())
    on conflict (consumer, key) do update set sequence = excluded.sequence, seen_at = excluded.seen_at
 where s.sequence < excluded.sequence
returning 1

-- name: mark_inbox
-- Written in the transaction of the handler's own writes, right before the settle: it never waits long (H21). The
-- fenced settle after it decides; a message that was already seen stays seen.
insert into todoku_inbox (consumer, message_id, seen_at) values (:consumer, :message_id::uuid, todoku_now())
    on conflict do nothing

-- name: entry
-- Only reads.
select digest, state, message_id, http_status, response::text, date_part('epoch', created_at),
       date_part('epoch', updated_at)
  from todoku_ledger where scope = :scope and key_hash = :key_hash
