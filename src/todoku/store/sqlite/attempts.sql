-- Failed attempts and recent events.

-- name: is_last_try
-- A fragment: no other attempt followed this one before the next replay.
not exists (select 1 from todoku_attempt b
             where b.delivery_id = a.delivery_id and b.epoch > a.epoch and b.replay = a.replay)

-- name: killed
-- A fragment: this attempt made the delivery a dead letter, and nothing has changed it since.
(d.status = 'aborted' and d.epoch = a.epoch + 1)

-- name: attempt_columns
-- A fragment: a failed attempt, whether it made the delivery a dead letter, whether the delivery is dead now because
-- of it, and its message.
a.delivery_id, a.replay, a.number, a.epoch, a.started_at / 1e6, a.ended_at / 1e6, a.reason, a.error,
       a.worker_id, a.response,
       {is_last_try} and case when d.id is not null then d.replay_count > a.replay or {killed}
           else not exists (select 1 from todoku_history h where h.message_seq = a.message_seq
                               and h.delivery_id = a.delivery_id and h.replay_count = a.replay) end,
       d.id is not null and {killed},
       m.id, a.traceback, a.fingerprint, a.run_ms

-- name: of_attempt
-- A fragment: the delivery and the message of an attempt, each by its key, if they still exist.
left join todoku_delivery d on d.id = a.delivery_id
  left join todoku_message m on m.seq = coalesce(a.message_seq, d.message_seq)

-- name: attempts
-- Only reads, by the index of attempts.
select {attempt_columns}
  from todoku_attempt a {of_attempt}
 where a.delivery_id in (select value from json_each(:ids))
 order by a.delivery_id, a.epoch

-- name: last_attempts
-- Only reads, by the index of attempts, whose last entry of a delivery is its last attempt.
select {attempt_columns}
  from todoku_attempt a {of_attempt}
 where a.delivery_id in (select value from json_each(:ids))
   and a.epoch = (select max(b.epoch) from todoku_attempt b where b.delivery_id = a.delivery_id)

-- name: tail
-- Only reads: a limited number of the latest rows of each kind, so that the cost does not depend on the size of the
-- tables. Rows of one transaction have the same time: `turn` orders them. Destinations of a published message are looked
-- up only if it is shown; a delivery that has succeeded since has its names in the history.
select at / 1e6, what, delivery_id, message_id, topic,
       case when what <> 'published' then destination else (
           select group_concat(name, ', ') from (
               select destination as name from todoku_delivery where message_seq = turn
               union
               select destination from todoku_history where message_seq = turn order by 1)) end,
       told, mark from (
    select * from (
        select created_at as at, 'published' as what, null as delivery_id, id as message_id, topic,
               null as destination, key as told, cast(seq as text) as mark, seq as turn
          from todoku_message order by seq desc limit :most)
    union all
    select h.finished_at, 'succeeded', h.delivery_id, m.id, m.topic, h.destination, null,
           h.delivery_id || '.' || h.epoch, h.delivery_id
      from (select * from todoku_history order by message_seq desc limit :most) h
      left join todoku_message m on m.seq = h.message_seq
    union all
    select a.ended_at, case when d.status = 'aborted' and d.epoch = a.epoch + 1 then 'aborted' else 'failed' end,
           a.delivery_id, m.id, m.topic,
           coalesce(d.destination, (select h.destination from todoku_history h
                                     where h.message_seq = a.message_seq and h.delivery_id = a.delivery_id)),
           a.reason || coalesce(': ' || a.error, ''), a.delivery_id || '.' || a.epoch, a.delivery_id
      from (select * from todoku_attempt order by ended_at desc limit :most) a {of_attempt}
    union all
    select s.at, s.action, d.id, m.id, m.topic, coalesce(d.destination, s.target), s.by || ': ' || s.why,
           cast(s.id as text), s.id
      from (select *, case when target like 'delivery:%' then cast(substr(target, 10) as integer) end as number
              from todoku_audit order by id desc limit :most) s
      left join todoku_delivery d on d.id = s.number
      left join todoku_message m on m.seq = d.message_seq) events
 where at > cast(:since * 1000000 as integer)
 order by at, turn
