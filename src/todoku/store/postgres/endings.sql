-- The consequences of a delivery's end: the last statements of the transaction that ends it (H11).

-- name: complete
-- A fragment: the batch waits for no member any more, and its next batch is not published yet.
(done_at is null and open = 0 and ("on" = 'finished' or aborted = 0))

-- name: over
-- Only reads rows that this transaction has locked and changed, or is about to.
select d.id, m.id::text, m.topic, m.key, d.destination, d.queue, m.headers::text, d.status, d.reason, d.error,
       d.attempts, d.replay_count
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_delivery where id = s.id limit 1) d
 cross join lateral (select id, topic, key, headers from todoku_message where seq = d.message_seq limit 1) m
 order by d.id

-- name: callback_sources
-- Only reads: the messages of deliveries that this transaction has ended, and the last response to each of them.
select s.delivery, m.payload::text, m.payload_bytes, m.content_type, date_part('epoch', m.created_at), a.response::text
  from json_to_recordset(:rows::json) as s(message uuid, delivery bigint)
 cross join lateral (select * from todoku_message where id = s.message limit 1) m
  left join lateral (select response from todoku_attempt
                      where delivery_id = s.delivery and response is not null order by epoch desc limit 1) a on true

-- name: hooks
-- Only reads: hooks announced at most `:forgotten_after` seconds before the newest announcement of any kind. While no
-- worker runs nothing is announced, and no hook is forgotten.
select h.name, h.event, h.queue, h.max_attempts, h.timeout, h.topic, h.destination, h.from_queue from todoku_hook h
 where h.seen_at > (select max(seen_at) from ({announcements}) a) - make_interval(secs => :forgotten_after)
 order by h.name, h.event

-- name: announcements
-- A fragment: the times of all announcements.
select max(seen_at) as seen_at from todoku_destination union all select max(seen_at) from todoku_hook

-- name: announce_hooks
-- The last worker that announces a hook defines its filter. Sorted, so that two workers cannot deadlock.
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

-- name: finish_batches
-- The rows are locked, and the next batch was published in this transaction; a second caller finds it done.
update todoku_batch set done_at = todoku_now(), next = null
 where id = any (:ids::text[]::uuid[]) and done_at is null

-- name: due_batches
-- Only reads: the small index of batches whose next batch could not be published together with the end of the last
-- member.
select id::text from todoku_batch where {complete} order by id limit :most

-- name: take_batch
-- Locked, so that one process publishes the next batch; rows locked by others are skipped.
select next::text from todoku_batch where id = :id::uuid and {complete} for update skip locked

-- name: give_up_batches
-- A member that must succeed was removed: the next batch will never be published.
update todoku_batch set done_at = todoku_now(), next = null
 where id = any (:ids::text[]::uuid[]) and done_at is null and "on" = 'succeeded'
