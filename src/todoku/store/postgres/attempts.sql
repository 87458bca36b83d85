-- Failed attempts and recent events.

-- name: attempts
-- Only reads.
select delivery_id, replay, number, epoch, date_part('epoch', started_at), date_part('epoch', ended_at), reason,
       error, worker_id, response::text
  from todoku_attempt where delivery_id = any (:ids::bigint[]) order by delivery_id, epoch

-- name: tail
-- Only reads, of each kind at most so many of the latest, so that it costs the same however much there is. What one
-- transaction wrote has one time: there `turn` tells what came first.
select date_part('epoch', at), what, delivery_id, message_id, topic, destination, told, mark from (
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
           a.delivery_id, m.id::text, m.topic, d.destination, a.reason || coalesce(': ' || a.error, ''),
           a.delivery_id || '.' || a.epoch, a.delivery_id
      from (select * from todoku_attempt order by ended_at desc limit :most) a
      left join lateral (select * from todoku_delivery where id = a.delivery_id limit 1) d on true
      left join lateral (select id, topic from todoku_message where seq = d.message_seq limit 1) m on true
    union all
    (select at, action, null, null, null, target, by || ': ' || why, id::text as mark, id as turn
       from todoku_audit order by todoku_audit.id desc limit :most)) events
 where at > to_timestamp(:since)
 order by at, turn
