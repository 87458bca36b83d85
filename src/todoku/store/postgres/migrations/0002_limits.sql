-- Limits that people set at run time: "limit" is how many at once, rate how many a second. After limit_until neither
-- counts; null means until somebody takes them away.
alter table todoku_queue
    add column rate double precision check (rate > 0),
    add column limit_until timestamptz;
alter table todoku_destination
    add column rate double precision check (rate > 0),
    add column limit_until timestamptz;
