-- Schedules.

-- name: schedule_columns
-- A fragment: a schedule, and the database's clock.
name, spec::text, date_part('epoch', next_run_at), paused, source, date_part('epoch', seen_at),
       date_part('epoch', last_run_at), last_message_id, error, date_part('epoch', updated_at),
       date_part('epoch', todoku_now()), missed_slots, missed_last, date_part('epoch', missed_at)

-- name: schedule_kept
-- A fragment: not paused, and either stored by an operator, or declared by an App whose worker announced it recently.
not paused and (source = 'stored' or seen_at > todoku_now() - make_interval(secs => :after))

-- name: next_schedule
-- Only reads: the database's clock, the earliest slot, and whether any schedule exists. By the index, it reads one
-- row.
select date_part('epoch', todoku_now()),
       (select date_part('epoch', next_run_at) from todoku_schedule
         where {schedule_kept} order by next_run_at limit 1),
       exists (select from todoku_schedule)

-- name: due_schedule
-- Locked until the messages of its slots and its next_run_at commit together (I2). Other workers skip a locked row;
-- one that locks it later checks the condition again and finds the next slot.
select {schedule_columns}
  from todoku_schedule
 where {schedule_kept} and next_run_at <= todoku_now() and name <> all (:but::text[])
 order by next_run_at, name limit 1
   for update skip locked

-- name: lock_schedule
-- Locks the row: it is not fired or changed before this transaction ends.
select {schedule_columns}
  from todoku_schedule where name = :name
   for update

-- name: advance_schedule
-- In the transaction of due_schedule, or of an operator's "run now", which does not change next_run_at.
update todoku_schedule
   set next_run_at = :next, last_run_at = coalesce(:slot::timestamptz, last_run_at),
       last_message_id = coalesce(:message_id::uuid, last_message_id), error = null,
       missed_slots = missed_slots + :missed::int,
       missed_last = case when :missed::int > 0 then :missed::int else missed_last end,
       missed_at = case when :missed::int > 0 then todoku_now() else missed_at end
 where name = :name

-- name: fail_schedule
-- Records the error and does not advance the slot: another worker may be able to fire it.
update todoku_schedule set error = :error where name = :name

-- name: put_schedule
-- One row, locked by this transaction if it existed; of two that create it, the second writes the same or the newer
-- text. An operator's pause stays.
insert into todoku_schedule (name, spec, next_run_at, source, seen_at, updated_at)
values (:name, :spec::json, :next, :source, todoku_now(), todoku_now())
    on conflict (name) do update
       set spec = excluded.spec, next_run_at = excluded.next_run_at, source = excluded.source,
           seen_at = excluded.seen_at, updated_at = excluded.updated_at, error = null

-- name: announce_schedules
-- Records that a worker declares these; locked in order, so that two workers cannot deadlock. A schedule that an
-- operator has taken over stays stored.
with mine as materialized (
    select name from todoku_schedule where name = any (:names::text[]) and source = 'code' order by name for update
)
update todoku_schedule set seen_at = todoku_now() where name = any (array(select name from mine))

-- name: pause_schedule
-- One row, locked in this transaction, which computed next_run_at.
update todoku_schedule set paused = :paused, next_run_at = :next, updated_at = todoku_now() where name = :name

-- name: remove_schedule
-- Messages it has published stay, and are delivered.
delete from todoku_schedule where name = :name

-- name: schedules
-- Only reads.
select {schedule_columns}
  from todoku_schedule order by name
