-- Schedules.

-- name: schedule_columns
-- A fragment: a schedule, and the database's clock.
name, spec, next_run_at / 1e6, paused, source, seen_at / 1e6, last_run_at / 1e6, last_message_id, error,
       updated_at / 1e6, :now / 1e6, missed_slots, missed_last, missed_at / 1e6

-- name: schedule_kept
-- A fragment: not paused, and either stored by an operator, or declared by an App whose worker announced it recently.
paused = 0 and (source = 'stored' or seen_at > :now - cast(:after * 1000000 as integer))

-- name: next_schedule
-- Only reads: the database's clock, the earliest slot, and whether any schedule exists. By the index, it reads one
-- row.
select :now / 1e6,
       (select next_run_at / 1e6 from todoku_schedule where {schedule_kept} order by next_run_at limit 1),
       exists (select 1 from todoku_schedule)

-- name: due_schedule
-- In the transaction that publishes and advances next_run_at: a second worker finds the next slot (I2).
select {schedule_columns}
  from todoku_schedule
 where {schedule_kept} and next_run_at <= :now and name not in (select value from json_each(:but))
 order by next_run_at, name limit 1

-- name: lock_schedule
-- There is one writer: the row does not change before this transaction ends.
select {schedule_columns}
  from todoku_schedule where name = :name

-- name: advance_schedule
-- In the transaction of due_schedule, or of an operator's "run now", which does not change next_run_at.
update todoku_schedule
   set next_run_at = :next, last_run_at = coalesce(:slot, last_run_at),
       last_message_id = coalesce(:message_id, last_message_id), error = null,
       missed_slots = missed_slots + :missed, missed_last = case when :missed > 0 then :missed else missed_last end,
       missed_at = case when :missed > 0 then :now else missed_at end
 where name = :name

-- name: fail_schedule
-- Records the error and does not advance the slot: another worker may be able to fire it.
update todoku_schedule set error = :error where name = :name

-- name: put_schedule
-- One row; it was compared in this transaction. An operator's pause stays.
insert into todoku_schedule (name, spec, next_run_at, source, seen_at, updated_at)
values (:name, :spec, :next, :source, :now, :now)
    on conflict (name) do update
       set spec = excluded.spec, next_run_at = excluded.next_run_at, source = excluded.source,
           seen_at = excluded.seen_at, updated_at = excluded.updated_at, error = null

-- name: announce_schedules
-- Records that a worker declares these. A schedule that an operator has taken over stays stored.
update todoku_schedule set seen_at = :now where name in (select value from json_each(:names)) and source = 'code'

-- name: pause_schedule
-- One row, locked in this transaction, which computed next_run_at.
update todoku_schedule set paused = :paused, next_run_at = :next, updated_at = :now where name = :name

-- name: remove_schedule
-- Messages it has published stay, and are delivered.
delete from todoku_schedule where name = :name

-- name: schedules
-- Only reads.
select {schedule_columns}
  from todoku_schedule order by name
