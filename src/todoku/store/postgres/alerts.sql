-- Alerts.

-- name: alerts
-- Only reads.
select name, sink, date_part('epoch', since), date_part('epoch', seen_at), date_part('epoch', next_at),
       date_part('epoch', told_at), ended, tries, value, threshold, date_part('epoch', todoku_now())
  from todoku_alert order by name, sink

-- name: begin_alert
-- The primary key decides between daemons that see the alert first; all insert by name and sink, so there is no
-- deadlock.
insert into todoku_alert (name, sink, since, seen_at, next_at, told_at, ended, tries, value, threshold)
values (:name, :sink, :since, :seen_at, :next_at, :told_at, :ended, :tries, :value, :threshold)
    on conflict (name, sink) do nothing

-- name: lock_alerts
-- Locks in key order, as every daemon does: the rows do not change before the daemon's decision commits.
select name, sink, date_part('epoch', since), date_part('epoch', seen_at), date_part('epoch', next_at),
       date_part('epoch', told_at), ended, tries, value, threshold, date_part('epoch', todoku_now())
  from todoku_alert order by name, sink for update

-- name: write_alert
-- The row is locked by lock_alerts in this transaction.
update todoku_alert
   set since = :since, seen_at = :seen_at, next_at = :next_at, told_at = :told_at, ended = :ended, tries = :tries,
       value = :value, threshold = :threshold
 where name = :name and sink = :sink

-- name: told_alert
-- Fenced by tries: a daemon that lost its lease to another changes nothing.
update todoku_alert set told_at = todoku_now(), next_at = todoku_now() + make_interval(secs => :remind)
 where name = :name and sink = :sink and tries = :tries

-- name: forget_alert
-- Fenced by tries, as told_alert.
delete from todoku_alert where name = :name and sink = :sink and tries = :tries

-- name: unwanted_dead
-- Only reads a limited number of dead letters at both ends of their index: those that no operator cancelled or settled
-- by hand.
select count(*), date_part('epoch', todoku_now() - min(updated_at))
  from ((select id, updated_at, reason from todoku_delivery where status = 'aborted' order by id limit :most)
        union
        (select id, updated_at, reason from todoku_delivery where status = 'aborted' order by id desc limit :most)) dead
 where coalesce(reason, '') not in ('CANCELLED', 'BY_HAND')
