-- Deliveries as people look at them.

-- name: matching
-- A fragment: the filter of find, replay, cancel and purge. An absent filter takes everything.
(:ids is null or d.id in (select value from json_each(:ids)))
   and (:message_id is null or m.id = :message_id)
   and (:status is null or d.status = :status)
   and (:topic is null or m.topic = :topic)
   and (:destination is null or d.destination = :destination)
   and (:queue is null or d.queue = :queue)
   and (:reason is null or d.reason = :reason)
   and (:key is null or m.key = :key)
   and (:since is null or d.updated_at >= :since)
   and (:until is null or d.updated_at < :until)
   and (not :due or (d.status in ('pending', 'failed') and d.next_run_at <= :now))

-- name: find
-- Only reads. By id downwards from the cursor, so a page is as cheap as the first.
select d.id, m.id, m.topic, m.key, d.destination, d.queue, d.lane, d.priority, d.status, d.attempts,
       d.max_attempts, d.lost, d.snoozes, d.replay_count, d.epoch, d.worker_id, d.cancel_requested,
       d.next_run_at / 1e6, m.created_at / 1e6, d.updated_at / 1e6, d.reason, d.error
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:before is null or d.id < :before)
 order by d.id desc limit :most

-- name: find_history
-- Only reads. By (message, delivery) downwards; a message that was pruned already is still told of.
select h.delivery_id, m.id, m.topic, m.key, h.destination, h.queue, null, 0, 'succeeded', h.attempts,
       h.attempts, 0, 0, h.replay_count, h.epoch, h.worker_id, 0,
       h.finished_at / 1e6, m.created_at / 1e6, h.finished_at / 1e6, null, null, h.message_seq
  from todoku_history h left join todoku_message m on m.seq = h.message_seq
 where (:message_id is null or m.id = :message_id)
   and (:ids is null or h.delivery_id in (select value from json_each(:ids)))
   and (:topic is null or m.topic = :topic)
   and (:destination is null or h.destination = :destination)
   and (:queue is null or h.queue = :queue)
   and (:key is null or m.key = :key)
   and (:since is null or h.finished_at >= :since)
   and (:until is null or h.finished_at < :until)
   and (:before is null or (h.message_seq, h.delivery_id) < (:before_seq, :before))
 order by h.message_seq desc, h.delivery_id desc limit :most

-- name: result
-- Only reads.
select result from todoku_result where delivery_id = :id

-- name: standing
-- Only reads, in one statement: a delivery that is being settled is in one of the two, never in neither.
select d.id, d.status, d.reason, d.error, null
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.destination = :destination
 union all
select h.delivery_id, 'succeeded', null, null,
       (select r.result from todoku_result r where r.delivery_id = h.delivery_id)
  from todoku_message m join todoku_history h on h.message_seq = m.seq
 where m.id = :message_id and h.destination = :destination
