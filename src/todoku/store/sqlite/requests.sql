-- HTTP requests.

-- name: is_http
-- A fragment, word for word as in the indexes of requests: the delivery is one of a request.
substr(queue || ':', 1, 5) in ('http:', 'flow:')

-- name: http_topics
-- A fragment, word for word as in the index of requests: the message is one.
m.topic in ('http.request', 'http.callback')

-- name: request_columns
-- A fragment: a delivery and its request, without the body.
d.id, m.seq, m.id, m.headers, m.created_at / 1e6, d.status, d.queue, d.attempts, d.next_run_at / 1e6,
       d.updated_at / 1e6, d.reason, d.error, d.replay_count, d.cancel_requested, d.claimed_at / 1e6

-- name: finished_columns
-- A fragment: as request_columns, of one that was delivered.
h.delivery_id, m.seq, m.id, m.headers, m.created_at / 1e6, 'succeeded', h.queue, h.attempts, h.finished_at / 1e6,
       h.finished_at / 1e6, null, null, h.replay_count, 0, null

-- name: requests_of
-- Only reads, by the unique index of ids, in one statement: what is being settled is in one of the two.
select {request_columns}
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id in (select value from json_each(:ids)) and {http_topics}
 union all
select {finished_columns}
  from todoku_message m join todoku_history h on h.message_seq = m.seq
 where m.id in (select value from json_each(:ids)) and {http_topics}
 order by 1

-- name: dead_requests
-- Only reads, down the index of dead requests from a position on.
select {request_columns}
  from (select * from todoku_delivery indexed by todoku_delivery_died
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and (:cancelled or coalesce(reason, '') <> 'CANCELLED')
         order by updated_at desc, id desc limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.updated_at desc, d.id desc

-- name: dead_requests_of
-- Only reads, by the primary key.
select {request_columns}
  from todoku_delivery d cross join todoku_message m on m.seq = d.message_seq
 where d.id in (select value from json_each(:ids)) and d.status = 'aborted' and {http_topics}
 order by d.updated_at desc, d.id desc

-- name: waiting_requests
-- Only reads, up the ids from a position on. The act that follows looks at each again, under its lock.
select {request_columns}
  from (select * from todoku_delivery not indexed
         where id > :after and status in ('pending', 'failed', 'sending') and not cancel_requested and {is_http}
         order by id limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.id

-- name: request_bodies
-- Only reads, by the unique index of ids.
select m.id, m.topic, m.content_type, coalesce(m.payload_bytes, cast(m.payload as blob)) from todoku_message m
 where m.id in (select value from json_each(:ids)) and {http_topics}

-- name: is_last_try
-- A fragment: no other attempt followed this one before the next replay.
not exists (select 1 from todoku_attempt b
             where b.delivery_id = a.delivery_id and b.epoch > a.epoch and b.replay = a.replay)

-- name: killed
-- A fragment: the end of this attempt made the delivery a dead letter: nothing has changed it since.
(d.status = 'aborted' and d.epoch = a.epoch + 1)

-- name: tried_columns
-- A fragment: a failed attempt, whether anything followed it, whether it is why the delivery is dead, and its message.
a.delivery_id, a.epoch, a.replay, a.number, a.started_at / 1e6, a.ended_at / 1e6, a.reason, a.error, a.response,
       {is_last_try} and case when d.id is not null then d.replay_count > a.replay or {killed}
           else not exists (select 1 from todoku_history h where h.message_seq = a.message_seq
                               and h.delivery_id = a.delivery_id and h.replay_count = a.replay) end,
       d.id is not null and {killed},
       m.id, m.headers, m.created_at / 1e6

-- name: attempts_of_requests
-- Only reads, by the index of attempts.
select {tried_columns}
  from todoku_attempt a left join todoku_delivery d on d.id = a.delivery_id
  join todoku_message m on m.seq = coalesce(a.message_seq, d.message_seq)
 where a.delivery_id in (select value from json_each(:ids)) and {http_topics}
 order by a.delivery_id, a.epoch

-- name: last_tried
-- Only reads, by the index of attempts, whose last entry of a delivery is its last attempt.
select {tried_columns}
  from todoku_attempt a left join todoku_delivery d on d.id = a.delivery_id
  join todoku_message m on m.seq = coalesce(a.message_seq, d.message_seq)
 where a.delivery_id in (select value from json_each(:ids)) and {http_topics}
   and a.epoch = (select max(b.epoch) from todoku_attempt b where b.delivery_id = a.delivery_id)

-- name: requests_created
-- Only reads, by the unique index of ids.
select m.id, m.headers, m.created_at / 1e6 from todoku_message m
 where m.id in (select value from json_each(:ids)) and {http_topics}

-- name: created_requests
-- Only reads, down the index of requests from a position on: ids begin with their time.
select m.id, m.headers, m.created_at / 1e6 from todoku_message m indexed by todoku_message_http
 where {http_topics} and m.id <= :before and m.id >= :since
 order by m.id desc limit :most

-- name: sending_requests
-- Only reads: what is in flight has a small index.
select {request_columns}
  from (select * from todoku_delivery indexed by todoku_delivery_owner
         where status = 'sending' and {is_http} and claimed_at >= :since and (claimed_at, id) <= (:before, :before_id)
         order by claimed_at desc, id desc limit :most) d
 cross join todoku_message m on m.seq = d.message_seq
 order by d.claimed_at desc, d.id desc

-- name: tried_requests
-- Only reads, down the index of ends from a position on; so many rows, those that are of no request too.
select {tried_columns}
  from (select * from todoku_attempt indexed by todoku_attempt_ended
         where ended_at >= :since and ended_at <= :before
           and (ended_at, delivery_id, epoch) <= (:before, :before_id, :before_epoch)
         order by ended_at desc, delivery_id desc, epoch desc limit :most) a
  left join todoku_delivery d on d.id = a.delivery_id
  left join todoku_message m on m.seq = coalesce(a.message_seq, d.message_seq) and {http_topics}
 order by a.ended_at desc, a.delivery_id desc, a.epoch desc

-- name: delivered_requests
-- Only reads, down the index of delivered requests from a position on.
select {finished_columns}
  from (select * from todoku_history indexed by todoku_history_http
         where {is_http} and finished_at >= :since and (finished_at, delivery_id) <= (:before, :before_id)
         order by finished_at desc, delivery_id desc limit :most) h
  left join todoku_message m on m.seq = h.message_seq and {http_topics}
 order by h.finished_at desc, h.delivery_id desc
