-- How long an attempt ran, in milliseconds, as its worker measured it; null: unknown, or settled by hand. `claimed_at` is
-- not its start: a worker claims ahead. A failed attempt also says whether it made its delivery a dead letter.
alter table todoku_history add column run_ms integer;
alter table todoku_attempt add column run_ms integer;
alter table todoku_attempt add column final boolean;
