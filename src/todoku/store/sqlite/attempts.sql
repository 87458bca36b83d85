-- Failed attempts and recent events.

-- name: attempts
-- Only reads.
select delivery_id, replay, number, epoch, started_at / 1e6, ended_at / 1e6, reason, error, worker_id, response
  from todoku_attempt where delivery_id in (select value from json_each(:ids)) order by delivery_id, epoch

-- name: tail
-- Only reads, of each kind at most so many of the latest, so that it costs the same however much there is. What one
-- transaction wrote has one time: there `turn` tells what came first.
select at / 1e6, what, delivery_id, message_id, topic, destination, told, mark from (
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
           a.delivery_id, m.id, m.topic, d.destination, a.reason || coalesce(': ' || a.error, ''),
           a.delivery_id || '.' || a.epoch, a.delivery_id
      from (select * from todoku_attempt order by ended_at desc limit :most) a
      left join todoku_delivery d on d.id = a.delivery_id
      left join todoku_message m on m.seq = d.message_seq
    union all
    select * from (
        select at, action, null, null, null, target, by || ': ' || why, cast(id as text), id
          from todoku_audit order by id desc limit :most)) events
 where at > cast(:since * 1000000 as integer)
 order by at, turn
