-- What operators ask of a worker, read by its heartbeat together with the limits: to claim nothing (drain_requested), and
-- for the stacks of its handlers (stack_request counts the requests; the worker answers into `stacks` and clears it after
-- a minute). All of it goes with the worker's row. slots, version: how much it runs at once, and which todoku it is.
alter table todoku_worker add column slots integer;
alter table todoku_worker add column version text;
alter table todoku_worker add column drain_requested integer not null default 0;
alter table todoku_worker add column stack_request integer not null default 0;
alter table todoku_worker add column stacks_answer integer;
alter table todoku_worker add column stacks_at integer;
alter table todoku_worker add column stacks text;

-- The slots that a schedule's policy did not fire: how many in all, and how many the last time and when.
alter table todoku_schedule add column missed_slots integer not null default 0;
alter table todoku_schedule add column missed_last integer not null default 0;
alter table todoku_schedule add column missed_at integer;
