-- Deliveries as people look at them.

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
