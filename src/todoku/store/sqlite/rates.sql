-- What arrived and ended over time.

-- name: arrival_edges
-- Only reads, by a few probes of indexes for each edge: the first message from then on, by the time in its id, and the
-- first delivery of it or of a later message. Ids of one millisecond are in any order, so a few are looked at.
select n, nullif(min(ifnull((select d.id from todoku_delivery d
                              where d.message_seq >= seq order by d.message_seq limit 1), 9223372036854775807),
                     ifnull((select h.delivery_id from todoku_history h
                              where h.message_seq >= seq order by h.message_seq limit 1), 9223372036854775807)),
                 9223372036854775807)
  from (select json_extract(s.value, '$.n') as n,
               (select min(seq) from (select m.seq from todoku_message m
                 where m.id >= json_extract(s.value, '$.low') order by m.id limit 20)) as seq
          from json_each(:edges) s)
 where seq is not null

-- name: last_delivery
-- Only reads: the last id that a delivery got, of those that wait or are dead, and of the newest message that ended.
select max(ifnull((select max(id) from todoku_delivery), 0),
           ifnull((select delivery_id from todoku_history order by message_seq desc limit 1), 0))

-- name: ended_size
-- Only reads both ends of the span: rows are appended in order of time, so their distance is about their number.
select size, size from (
    select coalesce((select rowid from todoku_history where finished_at < :until order by finished_at desc limit 1)
                    - (select rowid from todoku_history where finished_at >= :since order by finished_at limit 1)
                    + 1, 0) as size)

-- name: ended
-- Only reads the span, by the index of its times.
select finished_at / 1000000 / :width * :width, queue, destination, count(*)
  from todoku_history indexed by todoku_history_finished
 where finished_at >= :since and finished_at < :until
 group by 1, 2, 3

-- name: ended_sampled
-- Only reads: one row of each :step, counted :step times; not always the same one, or rows that take turns would be
-- counted wrongly.
with recursive
    picked(id, last) as (
        select (select rowid from todoku_history where finished_at >= :since order by finished_at limit 1),
               (select rowid from todoku_history where finished_at < :until order by finished_at desc limit 1)
        union all
        select id + :step, last from picked where id + :step <= last)
select h.finished_at / 1000000 / :width * :width, h.queue, h.destination, count(*) * :step
  from picked p cross join todoku_history h on h.rowid = p.id + (p.id * 2654435761 >> 9) % :step
 where h.finished_at >= :since and h.finished_at < :until
 group by 1, 2, 3

-- name: failed
-- Only reads, by the index, the first :most failed attempts of each stretch, and when the last of these ended.
select at, json_extract(found, '$[0]'), json_extract(found, '$[1]'), json_extract(found, '$[2]') / 1e6
  from (select s.value as at, (
            select json_array(count(*), count(*) filter (where final), max(ended_at)) from (
                select a.ended_at, a.final from todoku_attempt a indexed by todoku_attempt_ended
                 where a.ended_at >= s.value * 1000000 and a.ended_at < (s.value + :width) * 1000000
                 order by a.ended_at limit :most)) as found
          from json_each(:starts) s)
 where json_extract(found, '$[0]') > 0
