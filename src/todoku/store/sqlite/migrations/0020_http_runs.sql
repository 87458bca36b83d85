-- Workflow runs over HTTP. `request` has the options that a run was started with, `invoker` the run and the step that
-- wait for its result. A run has failed while one of its calls is a dead letter: that is not a state of this row.
create table todoku_http_run (
    id         text primary key,
    url        text not null,
    state      text not null default 'started' check (state in ('started', 'success', 'canceled')),
    request    text not null,
    labels     text not null default '[]',
    invoker    text,
    result     text,
    steps      integer not null default 0,
    bytes      integer not null default 0,
    created_at integer not null,
    updated_at integer not null,
    ended_at   integer
) strict;
create index todoku_http_run_created on todoku_http_run (created_at, id);
create index todoku_http_run_updated on todoku_http_run (updated_at);

-- The steps of a run, which are only appended: a call of the run's URL contains those up to its own. One result for each
-- key. `message_id` is the message that the step has published.
create table todoku_http_run_step (
    run_id     text not null,
    position   integer not null,
    step_key   text not null,
    message_id text not null,
    call_type  text not null check (call_type in ('step', 'toCallback')),
    name       text not null,
    type       text not null,
    body       text not null,
    created_at integer not null,
    primary key (run_id, position),
    unique (run_id, step_key)
) strict, without rowid;

-- Runs that wait for an event. `message_id` is the delayed call that goes out when the time to wait is over, or at once
-- when the event comes.
create table todoku_http_waiter (
    run_id     text not null,
    step_key   text not null,
    event_id   text not null,
    step       text not null,
    message_id text not null,
    deadline   integer not null,
    created_at integer not null,
    primary key (run_id, step_key)
) strict, without rowid;
create index todoku_http_waiter_event on todoku_http_waiter (event_id, run_id);

-- Events for a run that does not wait for them yet.
create table todoku_http_event (
    id         integer primary key,
    run_id     text not null,
    event_id   text not null,
    data       text not null,
    created_at integer not null
) strict;
create index todoku_http_event_run on todoku_http_event (run_id, event_id, id);
