-- The consequences of a delivery's end: the last statements of the transaction that ends it (H11).

-- name: over
-- Only reads rows that this transaction has changed, or is about to.
select d.id, m.id, m.topic, m.key, d.destination, d.queue, m.headers, d.status, d.reason, d.error, d.attempts,
       d.replay_count
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where d.id in (select value from json_each(:ids)) order by d.id

-- name: callback_sources
-- Only reads: the messages of deliveries that this transaction has ended, and the last response to each of them.
select json_extract(s.value, '$.delivery'), m.payload, m.payload_bytes, m.content_type, m.created_at / 1e6,
       (select a.response from todoku_attempt a
         where a.delivery_id = json_extract(s.value, '$.delivery') and a.response is not null
         order by a.epoch desc limit 1)
  from json_each(:rows) s join todoku_message m on m.id = json_extract(s.value, '$.message')

-- name: hooks
-- Only reads: hooks announced at most `:forgotten_after` seconds before the newest announcement of any kind. While no
-- worker runs nothing is announced, and no hook is forgotten.
select h.name, h.event, h.queue, h.max_attempts, h.timeout, h.topic, h.destination, h.from_queue from todoku_hook h
 where h.seen_at > (select max(seen_at) from ({announcements})) - cast(:forgotten_after * 1000000 as integer)
 order by h.name, h.event

-- name: announcements
-- A fragment: the times of all announcements.
select max(seen_at) as seen_at from todoku_destination union all select max(seen_at) from todoku_hook

-- name: announce_hooks
-- The last worker that announces a hook defines its filter.
insert into todoku_hook (name, event, queue, max_attempts, timeout, topic, destination, from_queue, seen_at)
select json_extract(value, '$.name'), json_extract(value, '$.event'), json_extract(value, '$.queue'),
       json_extract(value, '$.max_attempts'), json_extract(value, '$.timeout'), json_extract(value, '$.topic'),
       json_extract(value, '$.destination'), json_extract(value, '$.from_queue'), :now
  from json_each(:hooks) where true
    on conflict (name, event) do update
       set queue = excluded.queue, max_attempts = excluded.max_attempts, timeout = excluded.timeout,
           topic = excluded.topic, destination = excluded.destination, from_queue = excluded.from_queue,
           seen_at = excluded.seen_at

-- name: finish_batches
-- The next batch was published in this transaction; a second caller finds it done.
update todoku_batch set done_at = :now, next = null
 where id in (select value from json_each(:ids)) and done_at is null

-- name: due_batches
-- Only reads: the small index of batches whose next batch could not be published together with the end of the last
-- member.
select id from todoku_batch indexed by todoku_batch_due where {complete} order by id limit :most

-- name: take_batch
-- The write lock is held: no other connection publishes the next batch.
select next from todoku_batch where id = :id and {complete}

-- name: give_up_batches
-- A member that must succeed was removed: the next batch will never be published.
update todoku_batch set done_at = :now, next = null
 where id in (select value from json_each(:ids)) and done_at is null and "on" = 'succeeded'
