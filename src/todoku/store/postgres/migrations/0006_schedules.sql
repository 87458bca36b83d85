-- Schedules. source says who keeps it: "code" is declared by an App and announced by its workers (seen_at), "stored" was
-- made at run time and stays until somebody removes it. error is what kept the last firing from being made.
alter table todoku_schedule
    add column source text not null default 'stored' check (source in ('code', 'stored')),
    add column seen_at timestamptz,
    add column last_run_at timestamptz,
    add column last_message_id uuid,
    add column error text;
create index todoku_schedule_due on todoku_schedule (next_run_at) where not paused;
