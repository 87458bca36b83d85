-- What follows the end of a delivery: the last statements of the transaction that ends it (H11).

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
