-- Limits that people set at run time: "limit" is how many at once, rate how many a second. After limit_until neither
-- counts; null means until somebody takes them away.
alter table todoku_queue add column rate real check (rate > 0);
alter table todoku_queue add column limit_until integer;
alter table todoku_destination add column rate real check (rate > 0);
alter table todoku_destination add column limit_until integer;
