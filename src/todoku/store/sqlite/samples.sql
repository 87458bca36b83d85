-- Samples of what ended last.

-- name: history_parts
-- Only reads the last row: rows are appended in order of their ends. The history has one part, and a block is 64 rows.
select 0, 4102444800, coalesce((select max(rowid) from todoku_history), 0) / 64 + 1

-- name: history_tail
-- Only reads the last rows, and the message of each by its key.
select h.finished_at / 1e6, m.created_at / 1e6, h.run_ms, h.queue, h.destination
  from todoku_history h not indexed left join todoku_message m on m.seq = h.message_seq
 where h.rowid >= :after * 64 and h.finished_at >= :since and h.finished_at < :until

-- name: stray_tail
-- Reads nothing: there are no partitions, and so no rows outside of them.
select 0, 0, 0, '', '' where :blocks < 0

-- name: failures_tail
-- Only reads a limited number of the latest failed attempts, by the index of their ends. The names are the delivery's; one
-- that has succeeded since has them in the history.
select ended_at / 1e6, run_ms, reason, error, response_status, final, queue, destination
  from (select a.*, coalesce(d.queue, h.queue) as queue, coalesce(d.destination, h.destination) as destination
          from (select * from todoku_attempt indexed by todoku_attempt_ended
                 where ended_at >= :since order by ended_at desc limit :most) a
          left join todoku_delivery d on d.id = a.delivery_id
          left join todoku_history h indexed by todoku_history_message
            on d.id is null and h.message_seq = a.message_seq and h.delivery_id = a.delivery_id)
 where queue is not null
 order by ended_at desc
