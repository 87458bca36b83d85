-- HTTP requests.

-- name: is_http
-- A fragment, word for word as in the indexes of requests: the delivery is one of a request.
substr(queue || ':', 1, 5) in ('http:', 'flow:')

-- name: http_topics
-- A fragment, word for word as in the index of requests: the message is one.
m.topic in ('http.request', 'http.callback')

-- name: request_columns
-- A fragment: a delivery and its request, without the body.
d.id, m.seq, m.id, m.headers::text, date_part('epoch', m.created_at), d.status, d.queue, d.attempts,
       date_part('epoch', d.next_run_at), date_part('epoch', d.updated_at), d.reason, d.error, d.replay_count,
       d.cancel_requested, date_part('epoch', d.claimed_at)

-- name: finished_columns
-- A fragment: as request_columns, of one that was delivered.
h.delivery_id, m.seq, m.id, m.headers::text, date_part('epoch', m.created_at), 'succeeded', h.queue, h.attempts,
       date_part('epoch', h.finished_at), date_part('epoch', h.finished_at), null::text, null::text, h.replay_count,
       false, null::float8

-- name: requests_of
-- Only reads, by the unique index of ids, in one statement: what is being settled is in one of the two, never neither.
select {request_columns}
  from unnest(:ids::text[]::uuid[]) as s(id)
 cross join lateral (
    select seq, id, headers, created_at from todoku_message m where m.id = s.id and {http_topics} limit 1) m
 cross join lateral (select * from todoku_delivery where message_seq = m.seq offset 0) d
 union all
select {finished_columns}
  from unnest(:ids::text[]::uuid[]) as s(id)
 cross join lateral (
    select seq, id, headers, created_at from todoku_message m where m.id = s.id and {http_topics} limit 1) m
 cross join lateral (select * from todoku_history where message_seq = m.seq offset 0) h
 order by 1

-- name: dead_requests
-- Only reads, down the index of dead requests from a position on.
select {request_columns}
  from (select * from todoku_delivery
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and (:cancelled::boolean or coalesce(reason, '') <> 'CANCELLED')
         order by updated_at desc, id desc limit :most) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message where seq = d.message_seq limit 1) m
 order by d.updated_at desc, d.id desc

-- name: dead_requests_of
-- Only reads, by the primary key.
select {request_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_delivery where id = s.id and status = 'aborted' limit 1) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message m where seq = d.message_seq and {http_topics} limit 1) m
 order by d.updated_at desc, d.id desc

-- name: waiting_requests
-- Only reads, up the ids from a position on. The act that follows looks at each again, under its lock.
select {request_columns}
  from (select * from todoku_delivery
         where id > :after and status in ('pending', 'failed', 'sending') and not cancel_requested and {is_http}
         order by id limit :most) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message where seq = d.message_seq limit 1) m
 order by d.id

-- name: request_bodies
-- Only reads, by the unique index of ids.
select m.id, m.topic, m.content_type, coalesce(m.payload_bytes, convert_to(m.payload::text, 'UTF8'))
  from todoku_message m
 where m.id = any (:ids::text[]::uuid[]) and {http_topics}

-- name: is_last_try
-- A fragment: no other attempt followed this one before the next replay.
not exists (select from todoku_attempt b
             where b.delivery_id = a.delivery_id and b.epoch > a.epoch and b.replay = a.replay offset 0)

-- name: killed
-- A fragment: the end of this attempt made the delivery a dead letter: nothing has changed it since.
(d.status = 'aborted' and d.epoch = a.epoch + 1)

-- name: tried_columns
-- A fragment: a failed attempt, whether anything followed it, whether it is why the delivery is dead, and its message.
a.delivery_id, a.epoch, a.replay, a.number, date_part('epoch', a.started_at), date_part('epoch', a.ended_at),
       a.reason, a.error, a.response::text,
       {is_last_try} and case when d.id is not null then d.replay_count > a.replay or {killed}
           else not exists (select from todoku_history h where h.message_seq = a.message_seq
                               and h.delivery_id = a.delivery_id and h.replay_count = a.replay offset 0) end,
       d.id is not null and {killed},
       m.id, m.headers::text, date_part('epoch', m.created_at)

-- name: of_attempt
-- A fragment: the delivery and the request of an attempt, each by its key, as far as they are there.
left join lateral (
    select id, status, replay_count, epoch, message_seq from todoku_delivery where id = a.delivery_id limit 1) d on true
  left join lateral (
    select id, headers, created_at from todoku_message m
     where seq = coalesce(a.message_seq, d.message_seq) and {http_topics} limit 1) m on true

-- name: attempts_of_requests
-- Only reads, by the index of attempts.
select {tried_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_attempt where delivery_id = s.id offset 0) a
  {of_attempt}
 where m.id is not null
 order by a.delivery_id, a.epoch

-- name: last_tried
-- Only reads, by the index of attempts, whose last entry of a delivery is its last attempt.
select {tried_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_attempt where delivery_id = s.id order by epoch desc limit 1) a
  {of_attempt}
 where m.id is not null

-- name: requests_created
-- Only reads, by the unique index of ids.
select m.id, m.headers::text, date_part('epoch', m.created_at) from todoku_message m
 where m.id = any (:ids::text[]::uuid[]) and {http_topics}

-- name: created_requests
-- Only reads, down the index of requests from a position on: ids begin with their time.
select m.id, m.headers::text, date_part('epoch', m.created_at) from todoku_message m
 where {http_topics} and m.id <= :before and m.id >= :since
 order by m.id desc limit :most

-- name: sending_requests
-- Only reads: what is in flight has a small index.
select {request_columns}
  from (select * from todoku_delivery
         where status = 'sending' and {is_http} and claimed_at >= :since and (claimed_at, id) <= (:before, :before_id)
         order by claimed_at desc, id desc limit :most) d
 cross join lateral (
    select seq, id, headers, created_at from todoku_message where seq = d.message_seq limit 1) m
 order by d.claimed_at desc, d.id desc

-- name: tried_requests
-- Only reads, down the index of ends from a position on; so many rows, those that are of no request too.
select {tried_columns}
  from (select * from todoku_attempt
         where ended_at >= :since and ended_at <= :before
           and (ended_at, delivery_id, epoch) <= (:before, :before_id, :before_epoch)
         order by ended_at desc, delivery_id desc, epoch desc limit :most) a
  {of_attempt}
 order by a.ended_at desc, a.delivery_id desc, a.epoch desc

-- name: delivered_requests
-- Only reads, down the index of delivered requests from a position on.
select {finished_columns}
  from (select * from todoku_history
         where {is_http} and finished_at >= :since and (finished_at, delivery_id) <= (:before, :before_id)
         order by finished_at desc, delivery_id desc limit :most) h
  left join lateral (
    select seq, id, headers, created_at from todoku_message m
     where seq = h.message_seq and {http_topics} limit 1) m on true
 order by h.finished_at desc, h.delivery_id desc
