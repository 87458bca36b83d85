-- Samples of what ended last.

-- name: history_parts
-- Only reads the catalogue: the parts of the history that are written to now, the newest first, and how many blocks each
-- has. Rows are appended, so the last blocks have the rows that ended last.
select c.oid::bigint, pg_relation_size(c.oid) / 8192
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = 'todoku_history'::regclass
   and (right(c.relname, 8) = '_default'
        or right(c.relname, 8) between to_char(todoku_now() at time zone 'UTC' - interval '1 day', 'YYYYMMDD')
                                   and to_char(todoku_now() at time zone 'UTC', 'YYYYMMDD'))
 order by right(c.relname, 8) = '_default', c.relname desc

-- name: history_tail
-- Only reads the last blocks of one part, and the message of each row by its key. The time leaves older days out.
select date_part('epoch', h.finished_at), date_part('epoch', m.created_at), h.run_ms, h.queue, h.destination
  from (select finished_at, message_seq, run_ms, queue, destination from todoku_history
         where tableoid = :part::bigint::oid and ctid >= format('(%s,0)', :after::bigint)::tid
           and finished_at > todoku_now() - interval '2 days' offset 0) h
  left join lateral (select created_at from todoku_message where seq = h.message_seq limit 1) m on true

-- name: failures_tail
-- Only reads a limited number of the latest failed attempts, by the index of their ends. The names are the delivery's; one
-- that has succeeded since has them in the history.
select date_part('epoch', a.ended_at), a.run_ms, a.reason, a.error, a.response_status, a.final,
       coalesce(d.queue, h.queue), coalesce(d.destination, h.destination)
  from (select * from todoku_attempt where ended_at >= :since::timestamptz order by ended_at desc limit :most) a
  left join lateral (select queue, destination from todoku_delivery where id = a.delivery_id limit 1) d on true
  left join lateral (select queue, destination from todoku_history
                      where d.queue is null and message_seq = a.message_seq and delivery_id = a.delivery_id limit 1) h
         on true
 where coalesce(d.queue, h.queue) is not null
 order by a.ended_at desc
