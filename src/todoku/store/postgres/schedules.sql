-- Schedules.

-- name: schedule_columns
-- A fragment: a schedule as people and workers see it, and the time it is.
name, spec::text, date_part('epoch', next_run_at), paused, source, date_part('epoch', seen_at),
       date_part('epoch', last_run_at), last_message_id, error, date_part('epoch', updated_at),
       date_part('epoch', todoku_now())

-- name: schedule_kept
-- A fragment: not paused, and somebody keeps it: the database itself, or an App whose worker announced it lately.
not paused and (source = 'stored' or seen_at > todoku_now() - make_interval(secs => :after))

-- name: next_schedule
-- Only reads: the time it is, the next slot of all, and whether there is any schedule. The index ends it at one row.
select date_part('epoch', todoku_now()),
       (select date_part('epoch', next_run_at) from todoku_schedule
         where {schedule_kept} order by next_run_at limit 1),
       exists (select from todoku_schedule)

-- name: due_schedule
-- Locked until the messages of its slots and its next_run_at commit together (I2). Others pass a locked one over, and
-- who locks it later looks at the condition again and finds the next slot there.
select {schedule_columns}
  from todoku_schedule
 where {schedule_kept} and next_run_at <= todoku_now() and name <> all (:but::text[])
 order by next_run_at, name limit 1
   for update skip locked

-- name: lock_schedule
-- Nobody fires or changes it before this transaction ends.
select {schedule_columns}
  from todoku_schedule where name = :name
   for update

-- name: advance_schedule
-- In the transaction of due_schedule, or of a person who runs it now and leaves next_run_at as it is.
update todoku_schedule
   set next_run_at = :next, last_run_at = coalesce(:slot::timestamptz, last_run_at),
       last_message_id = coalesce(:message_id::uuid, last_message_id), error = null
 where name = :name

-- name: fail_schedule
-- Says what is wrong and moves nothing: another worker may be able to fire it.
update todoku_schedule set error = :error where name = :name

-- name: put_schedule
-- One row, locked by this transaction if it was there; of two that make it, the second writes the same or the newer
-- text. A pause is a person's and stays.
insert into todoku_schedule (name, spec, next_run_at, source, seen_at, updated_at)
values (:name, :spec::json, :next, :source, todoku_now(), todoku_now())
    on conflict (name) do update
       set spec = excluded.spec, next_run_at = excluded.next_run_at, source = excluded.source,
           seen_at = excluded.seen_at, updated_at = excluded.updated_at, error = null

-- name: announce_schedules
-- Says that somebody here declares these; locked in order, so that two workers cannot deadlock. One that was taken over
-- at run time stays so.
with mine as materialized (
    select name from todoku_schedule where name = any (:names::text[]) and source = 'code' order by name for update
)
update todoku_schedule set seen_at = todoku_now() where name = any (array(select name from mine))

-- name: pause_schedule
-- One row, locked by this transaction, which decided next_run_at.
update todoku_schedule set paused = :paused, next_run_at = :next, updated_at = todoku_now() where name = :name

-- name: remove_schedule
-- What it has published stays, and is delivered.
delete from todoku_schedule where name = :name

-- name: schedules
-- Only reads.
select {schedule_columns}
  from todoku_schedule order by name
