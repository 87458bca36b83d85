-- Failed attempts and recent events.

-- name: is_last_try
-- A fragment: no other attempt followed this one before the next replay.
not exists (select from todoku_attempt b
             where b.delivery_id = a.delivery_id and b.epoch > a.epoch and b.replay = a.replay offset 0)

-- name: killed
-- A fragment: this attempt made the delivery a dead letter, and nothing has changed it since.
(d.status = 'aborted' and d.epoch = a.epoch + 1)

-- name: attempt_columns
-- A fragment: a failed attempt, whether it made the delivery a dead letter, whether the delivery is dead now because
-- of it, and its message.
a.delivery_id, a.replay, a.number, a.epoch, date_part('epoch', a.started_at), date_part('epoch', a.ended_at), a.reason, a.error,
       a.worker_id, a.response::text,
       {is_last_try} and case when d.id is not null then d.replay_count > a.replay or {killed}
           else not exists (select from todoku_history h where h.message_seq = a.message_seq
                               and h.delivery_id = a.delivery_id and h.replay_count = a.replay offset 0) end,
       d.id is not null and {killed},
       m.id, a.traceback, a.fingerprint, a.run_ms

-- name: of_attempt
-- A fragment: the delivery and the message of an attempt, each by its key, if they still exist.
left join lateral (
    select id, status, replay_count, epoch, message_seq from todoku_delivery where id = a.delivery_id limit 1) d on true
  left join lateral (
    select id, topic, headers from todoku_message
     where seq = coalesce(a.message_seq, d.message_seq) limit 1) m on true

-- name: attempts
-- Only reads, by the index of attempts.
select {attempt_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_attempt where delivery_id = s.id offset 0) a
  {of_attempt}
 order by a.delivery_id, a.epoch

-- name: last_attempts
-- Only reads, by the index of attempts, whose last entry of a delivery is its last attempt.
select {attempt_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_attempt where delivery_id = s.id order by epoch desc limit 1) a
  {of_attempt}

-- name: tail
-- Only reads: a limited number of the latest rows of each kind, so that the cost does not depend on the size of the
-- tables. Rows of one transaction have the same time: `turn` orders them. Destinations of a published message are looked
-- up only if it is shown; a delivery that has succeeded since has its names in the history.
select date_part('epoch', at), what, delivery_id, message_id, topic,
       case when what <> 'published' then destination else (
           select string_agg(name, ', ' order by name) from (
               select destination as name from todoku_delivery where message_seq = turn
               union
               select destination from todoku_history where message_seq = turn) names) end,
       told, mark from (
    (select created_at as at, 'published' as what, null::bigint as delivery_id, id::text as message_id, topic,
            null as destination, key as told, seq::text as mark, seq as turn
       from todoku_message order by seq desc limit :most)
    union all
    select h.finished_at, 'succeeded', h.delivery_id, m.id::text, m.topic, h.destination, null,
           h.delivery_id || '.' || h.epoch, h.delivery_id
      from (select * from todoku_history order by message_seq desc limit :most) h
      left join lateral (select id, topic from todoku_message where seq = h.message_seq limit 1) m on true
    union all
    select a.ended_at, case when d.status = 'aborted' and d.epoch = a.epoch + 1 then 'aborted' else 'failed' end,
           a.delivery_id, m.id::text, m.topic,
           coalesce(d.destination, (select h.destination from todoku_history h
                                     where h.message_seq = a.message_seq and h.delivery_id = a.delivery_id limit 1)),
           a.reason || coalesce(': ' || a.error, ''), a.delivery_id || '.' || a.epoch, a.delivery_id
      from (select * from todoku_attempt order by ended_at desc limit :most) a
      left join lateral (select * from todoku_delivery where id = a.delivery_id limit 1) d on true
      left join lateral (select id, topic from todoku_message
                          where seq = coalesce(a.message_seq, d.message_seq) limit 1) m on true
    union all
    select s.at, s.action, d.id, m.id::text, m.topic, coalesce(d.destination, s.target), s.by || ': ' || s.why,
           s.id::text, s.id
      from (select * from todoku_audit order by id desc limit :most) s
      left join lateral (select * from todoku_delivery
                          where id = substring(left(s.target, 27) from '^delivery:([0-9]+)$')::bigint limit 1) d on true
      left join lateral (select id, topic from todoku_message where seq = d.message_seq limit 1) m on true) events
 where at > to_timestamp(:since)
 order by at, turn
