-- The ledger and the inbox.

-- name: publish_reserve
-- The unique key decides; a second publisher inserts nothing.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at)
values (:scope, :key_hash, :digest, 'accepted', :id, :now, :now)
    on conflict (scope, key_hash) do nothing

-- name: publish_reserve_for
-- As publish_reserve, but an expired entry is replaced: its key is free again.
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at, expires_at)
values (:scope, :key_hash, :digest, 'accepted', :id, :now, :now, :now + cast(:lasts * 1000000 as integer))
    on conflict (scope, key_hash) do update
       set digest = excluded.digest, message_id = excluded.message_id, created_at = excluded.created_at,
           updated_at = excluded.updated_at, expires_at = excluded.expires_at, state = excluded.state,
           http_status = null, response = null
     where todoku_ledger.expires_at <= excluded.created_at

-- name: publish_reserve_run
-- As publish_reserve_for, but the entry of a run that has not ended is not replaced, however old it is (R8).
insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at, expires_at)
values (:scope, :key_hash, :digest, 'accepted', :id, :now, :now, :now + cast(:lasts * 1000000 as integer))
    on conflict (scope, key_hash) do update
       set digest = excluded.digest, message_id = excluded.message_id, created_at = excluded.created_at,
           updated_at = excluded.updated_at, expires_at = excluded.expires_at, state = excluded.state,
           http_status = null, response = null
     where todoku_ledger.expires_at <= excluded.created_at
       and not exists (select 1 from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                        where m.id = todoku_ledger.message_id and d.status in ('pending', 'sending', 'failed'))

-- name: publish_reserved
-- This transaction holds the write lock: the entries cannot change any more. All of them are returned as one text: for
-- each fetched row sqlite3 releases and takes the interpreter's lock, which costs 100 µs beside a busy event loop.
-- Times are in microseconds: this JSON has only fifteen digits for a fraction.
select json_group_array(json_array(l.scope, l.key_hash, l.digest, l.message_id,
                                   coalesce(m.created_at, l.created_at), m.payload))
  from json_each(:entries) e
 cross join todoku_ledger l
    on l.scope = json_extract(e.value, '$.scope') and l.key_hash = json_extract(e.value, '$.key_hash')
  left join todoku_message m on m.id = l.message_id

-- name: publish_unreserve
-- Only entries that this publish reserved: they have its message id.
delete from todoku_ledger where scope = :scope and key_hash = :key_hash and message_id = :id

-- name: once_found
-- This transaction holds the write lock: the entry cannot change any more.
select digest, state, message_id, http_status, response, created_at / 1e6
  from todoku_ledger where scope = :scope and key_hash = :key_hash

-- name: once_record
-- Only for the caller that reserved the key: the token is its own.
update todoku_ledger
   set state = :state, http_status = :status, response = :response, updated_at = :now,
       expires_at = :now + cast(:lasts * 1000000 as integer)
 where scope = :scope and key_hash = :key_hash and message_id = :token
returning 1

-- name: once_conclude
-- Only an open entry: one that has succeeded or failed stays as it is, and of two concurrent callers one succeeds.
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
-- There is one writer at a time; each compares with the value of the one before it.
insert into todoku_inbox_sequence (consumer, key, sequence, seen_at) values (:consumer, :key, :sequence, :now)
    on conflict (consumer, key) do update set sequence = excluded.sequence, seen_at = excluded.seen_at
 where todoku_inbox_sequence.sequence < excluded.sequence
returning 1

-- name: mark_inbox
-- Written in the transaction of the handler's own writes, right before the settle: it never waits long (H21). The
-- fenced settle after it decides; a message that was already seen stays seen.
insert into todoku_inbox (consumer, message_id, seen_at) values (:consumer, :message_id, :now)
    on conflict do nothing

-- name: entry
-- Only reads.
select digest, state, message_id, http_status, response, created_at / 1e6, updated_at / 1e6
  from todoku_ledger where scope = :scope and key_hash = :key_hash
