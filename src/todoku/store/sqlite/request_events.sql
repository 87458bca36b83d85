-- Events of HTTP requests. Rows that the filter does not match are returned, too: they show how far was read.

-- name: created_requests
-- Only reads, down the index of requests from a position: ids begin with their time.
select m.id, m.created_at / 1e6, {request_matching}
  from todoku_message m indexed by todoku_message_http
 where {http_topics} and m.id <= :before and m.id >= :since
 order by m.id desc limit :most

-- name: sending_requests
-- Only reads: deliveries in flight have a small index.
select {delivery_columns}, {request_matching}
  from (select * from todoku_delivery indexed by todoku_delivery_owner
         where status = 'sending' and {is_http} and claimed_at >= :since and (claimed_at, id) <= (:before, :before_id)
         order by claimed_at desc, id desc limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.claimed_at desc, d.id desc

-- name: dead_requests
-- Only reads, down the index of dead requests from a position; includes cancelled ones.
select {delivery_columns}, {request_matching}
  from (select * from todoku_delivery indexed by todoku_delivery_died
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
         order by updated_at desc, id desc limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.updated_at desc, d.id desc

-- name: tried_requests
-- Only reads, down the index of end times from a position; a fixed number of rows, including those that are not
-- requests.
select {attempt_columns}, m.id is not null and {http_topics} and {request_matching}
  from (select * from todoku_attempt indexed by todoku_attempt_ended
         where ended_at >= :since and ended_at <= :before
           and (ended_at, delivery_id, epoch) <= (:before, :before_id, :before_epoch)
         order by ended_at desc, delivery_id desc, epoch desc limit :most) a
  {of_attempt}
 order by a.ended_at desc, a.delivery_id desc, a.epoch desc

-- name: delivered_requests
-- Only reads, down the index of delivered requests from a position.
select {finished_columns}, m.id is not null and {request_matching}
  from (select * from todoku_history indexed by todoku_history_http
         where {is_http} and finished_at >= :since and (finished_at, delivery_id) <= (:before, :before_id)
         order by finished_at desc, delivery_id desc limit :most) h
  left join todoku_message m on m.seq = h.message_seq and {http_topics}
 order by h.finished_at desc, h.delivery_id desc
