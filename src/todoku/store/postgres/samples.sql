-- Samples of what ended last.

-- name: history_parts
-- Only reads the catalogue: the days of the history that are written to now, the newest first, and how many blocks each
-- has. Rows are appended, so the last blocks have the rows that ended last.
select date_part('epoch', day), date_part('epoch', day + interval '1 day'), blocks
  from (select to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'UTC' as day,
               pg_relation_size(c.oid) / 8192 as blocks
          from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'todoku_history'::regclass and right(c.relname, 8) <> '_default') days
 where day between todoku_now() - interval '2 days' and todoku_now()
 order by day desc

-- name: history_tail
-- Only reads the last blocks of one day, and the message of each row by its key.
select date_part('epoch', h.finished_at), date_part('epoch', m.created_at), h.run_ms, h.queue, h.destination
  from (select finished_at, message_seq, run_ms, queue, destination from todoku_history
         where ctid >= format('(%s,0)', :after::bigint)::tid
           and finished_at >= :since::timestamptz and finished_at < :until::timestamptz offset 0) h
  left join lateral (select created_at from todoku_message where seq = h.message_seq limit 1) m on true

-- name: stray_tail
-- As history_tail, of the rows outside every day (H27): usually there are none.
select date_part('epoch', h.finished_at), date_part('epoch', m.created_at), h.run_ms, h.queue, h.destination
  from (select finished_at, message_seq, run_ms, queue, destination from todoku_history_default
         -- a subquery, because a volatile function is no bound of a scan by ctid
         where ctid >= (select format('(%s,0)', greatest(0, pg_relation_size('todoku_history_default'::regclass) / 8192
                                                            - :blocks))::tid)
        offset 0) h
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
