-- What arrived and ended over time.

-- name: arrival_edges
-- Only reads, by a few probes of indexes for each edge: the first message from then on, by the time in its id, and the
-- first delivery of it or of a later message. Ids of one millisecond are in any order, so a few are looked at. A message
-- cannot end before it arrives, so older days are not read.
select s.n, least(d.id, h.delivery_id)
  from json_to_recordset(:edges::json) as s(n int, low uuid, at float8)
 cross join lateral (
    select min(seq) as seq from (select seq from todoku_message where id >= s.low order by id limit 20) first) m
  left join lateral (
    select id from todoku_delivery where message_seq >= m.seq order by message_seq limit 1) d on true
  left join lateral (
    select delivery_id from todoku_history
     where message_seq >= m.seq and finished_at >= to_timestamp(s.at) order by message_seq limit 1) h on true
 where m.seq is not null

-- name: last_delivery
-- Only reads: the last id that a delivery got, of those that wait or are dead, and of the newest message that ended.
select greatest((select max(id) from todoku_delivery),
                (select delivery_id from todoku_history order by message_seq desc limit 1), 0)

-- name: ended_size
-- Only reads: about how many rows the days of a span have, and how many of them are in the span; nothing is counted.
select coalesce(sum(size), 0)::bigint,
       (coalesce(sum(size), 0) * least(1.0, date_part('epoch', :until::timestamptz - :since::timestamptz)
                                            / (86400.0 * greatest(1, count(*) - 1))))::bigint
  from (select case when c.reltuples > 0 and c.relpages > 0
                    then c.reltuples / c.relpages * (pg_relation_size(c.oid) / 8192)
                    else pg_relation_size(c.oid) / 100 end as size
          from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'todoku_history'::regclass
           and (right(c.relname, 8) = '_default'
                or right(c.relname, 8) between to_char(:since::timestamptz at time zone 'UTC', 'YYYYMMDD')
                                           and to_char(:until::timestamptz at time zone 'UTC', 'YYYYMMDD'))) parts

-- name: ended
-- Only reads the blocks of the span, by an index of a few pages.
select floor(date_part('epoch', finished_at) / :width)::bigint * :width, queue, destination, count(*)
  from todoku_history
 where finished_at >= :since::timestamptz and finished_at < :until::timestamptz
 group by 1, 2, 3

-- name: ended_sampled
-- Only reads: one block in :step of the days of the span, each of its rows counted :step times; always the same blocks.
select floor(date_part('epoch', finished_at) / :width)::bigint * :width, queue, destination, count(*) * :step
  from todoku_history tablesample system (100.0 / :step) repeatable (0)
 where finished_at >= :since::timestamptz and finished_at < :until::timestamptz
 group by 1, 2, 3

-- name: failed
-- Only reads, by the index, the first :most failed attempts of each stretch, and when the last of these ended.
select s.at, f.number, f.final, f.until
  from unnest(:starts::bigint[]) as s(at)
 cross join lateral (
    select count(*) as number, count(*) filter (where final) as final, date_part('epoch', max(ended_at)) as until from (
        select ended_at, final from todoku_attempt
         where ended_at >= to_timestamp(s.at) and ended_at < to_timestamp(s.at + :width)
         order by ended_at limit :most) a) f
 where f.number > 0
