-- Schedules.

-- name: schedule_columns
-- A fragment: a schedule as people and workers see it, and the time it is.
name, spec, next_run_at / 1e6, paused, source, seen_at / 1e6, last_run_at / 1e6, last_message_id, error,
       updated_at / 1e6, :now / 1e6

-- name: schedule_kept
-- A fragment: not paused, and somebody keeps it: the database itself, or an App whose worker announced it lately.
paused = 0 and (source = 'stored' or seen_at > :now - cast(:after * 1000000 as integer))

-- name: next_schedule
-- Only reads: the time it is, the next slot of all, and whether there is any schedule. The index ends it at one row.
select :now / 1e6,
       (select next_run_at / 1e6 from todoku_schedule where {schedule_kept} order by next_run_at limit 1),
       exists (select 1 from todoku_schedule)

-- name: due_schedule
-- In the transaction that publishes and moves next_run_at on: whoever comes second finds the next slot there (I2).
select {schedule_columns}
  from todoku_schedule
 where {schedule_kept} and next_run_at <= :now and name not in (select value from json_each(:but))
 order by next_run_at, name limit 1

-- name: lock_schedule
-- There is one writer: nobody changes it before this transaction ends.
select {schedule_columns}
  from todoku_schedule where name = :name

-- name: advance_schedule
-- In the transaction of due_schedule, or of a person who runs it now and leaves next_run_at as it is.
update todoku_schedule
   set next_run_at = :next, last_run_at = coalesce(:slot, last_run_at),
       last_message_id = coalesce(:message_id, last_message_id), error = null
 where name = :name

-- name: fail_schedule
-- Says what is wrong and moves nothing: another worker may be able to fire it.
update todoku_schedule set error = :error where name = :name

-- name: put_schedule
-- One row; whether it changed was seen in this transaction. A pause is a person's and stays.
insert into todoku_schedule (name, spec, next_run_at, source, seen_at, updated_at)
values (:name, :spec, :next, :source, :now, :now)
    on conflict (name) do update
       set spec = excluded.spec, next_run_at = excluded.next_run_at, source = excluded.source,
           seen_at = excluded.seen_at, updated_at = excluded.updated_at, error = null

-- name: announce_schedules
-- Says that somebody here declares these. One that was taken over at run time stays so.
update todoku_schedule set seen_at = :now where name in (select value from json_each(:names)) and source = 'code'

-- name: pause_schedule
-- One row, of which next_run_at was decided in this transaction.
update todoku_schedule set paused = :paused, next_run_at = :next, updated_at = :now where name = :name

-- name: remove_schedule
-- What it has published stays, and is delivered.
delete from todoku_schedule where name = :name

-- name: schedules
-- Only reads.
select {schedule_columns}
  from todoku_schedule order by name
