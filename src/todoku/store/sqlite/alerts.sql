-- Alerts.

-- name: alerts
-- Only reads.
select name, sink, since / 1e6, seen_at / 1e6, next_at / 1e6, told_at / 1e6, ended, tries, value, threshold, :now / 1e6
  from todoku_alert order by name, sink

-- name: begin_alert
-- The primary key decides: a known alert is not changed.
insert into todoku_alert (name, sink, since, seen_at, next_at, told_at, ended, tries, value, threshold)
values (:name, :sink, :since, :seen_at, :next_at, :told_at, :ended, :tries, :value, :threshold)
    on conflict (name, sink) do nothing

-- name: lock_alerts
-- This transaction holds the write lock: the rows do not change before the daemon's decision commits.
select name, sink, since / 1e6, seen_at / 1e6, next_at / 1e6, told_at / 1e6, ended, tries, value, threshold, :now / 1e6
  from todoku_alert order by name, sink

-- name: write_alert
-- The row was read in this transaction.
update todoku_alert
   set since = :since, seen_at = :seen_at, next_at = :next_at, told_at = :told_at, ended = :ended, tries = :tries,
       value = :value, threshold = :threshold
 where name = :name and sink = :sink

-- name: told_alert
-- Fenced by tries: a daemon that lost its lease to another changes nothing.
update todoku_alert set told_at = :now, next_at = :now + cast(:remind * 1000000 as integer)
 where name = :name and sink = :sink and tries = :tries

-- name: forget_alert
-- Fenced by tries, as told_alert.
delete from todoku_alert where name = :name and sink = :sink and tries = :tries

-- name: unwanted_dead
-- Only reads a limited number of dead letters at both ends of their index: those that no operator cancelled or settled
-- by hand.
select count(*), (:now - min(updated_at)) / 1e6
  from (select * from (select id, updated_at, reason from todoku_delivery indexed by todoku_delivery_dead
                        where status = 'aborted' order by id limit :most)
        union
        select * from (select id, updated_at, reason from todoku_delivery indexed by todoku_delivery_dead
                        where status = 'aborted' order by id desc limit :most))
 where coalesce(reason, '') not in ('CANCELLED', 'BY_HAND')
