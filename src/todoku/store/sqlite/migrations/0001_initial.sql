-- todoku on SQLite 3.37 or newer. Times are microseconds since 1970 (UTC), booleans 0 or 1, ids of messages text.
-- "Never" is the largest integer. autoincrement: a token (id, epoch, worker) works once, so an id is never used again.

-- Insert-only: a message is a fact.
create table todoku_message (
    seq           integer primary key autoincrement,
    id            text not null unique,
    topic         text not null,
    type          text not null,
    key           text,
    payload       text,
    payload_bytes blob,
    content_type  text not null,
    headers       text,
    labels        text,
    scope         text,
    key_hash      text,
    digest        text,
    created_at    integer not null
) strict;
create index todoku_message_key on todoku_message (key) where key is not null;
create index todoku_message_key_hash on todoku_message (key_hash) where key_hash is not null;

-- The only mutable row: one message on its way to one destination. Unfinished rows and dead letters.
create table todoku_delivery (
    id               integer primary key autoincrement,
    message_seq      integer not null,
    destination      text not null,
    queue            text not null,
    lane             integer,
    priority         integer not null check (priority between 0 and 15),
    status           text not null check (status in ('pending', 'sending', 'failed', 'aborted')),
    attempts         integer not null default 0 check (attempts >= 0),
    max_attempts     integer not null check (max_attempts > 0),
    lost             integer not null default 0,
    snoozes          integer not null default 0,
    replay_count     integer not null default 0,
    epoch            integer not null default 0,
    worker_id        text,
    cancel_requested integer not null default 0,
    next_run_at      integer not null,
    claimed_at       integer,
    expires_at       integer not null default 9223372036854775807,
    updated_at       integer not null,
    timeout          real,
    reason           text,
    error            text,
    check ((status = 'sending') = (worker_id is not null))
) strict;
-- What claim reads: equality up to priority, then time. expires_at is last so that a heap of expired rows is passed
-- over inside the index.
create index todoku_delivery_due on todoku_delivery (queue, destination, priority, next_run_at, id, expires_at)
    where status in ('pending', 'failed') and lane is null and lost = 0;
-- Rows whose owner died are claimed alone (H6), so they are not in the way of the others.
create index todoku_delivery_suspect on todoku_delivery (queue, destination, next_run_at, id)
    where status in ('pending', 'failed') and lane is null and lost > 0;
create index todoku_delivery_lane on todoku_delivery (lane, id)
    where lane is not null and status <> 'aborted';
create index todoku_delivery_owner on todoku_delivery (worker_id)
    where status = 'sending';
create index todoku_delivery_expiring on todoku_delivery (expires_at)
    where status in ('pending', 'failed') and expires_at < 9223372036854775807;
create index todoku_delivery_dead on todoku_delivery (id)
    where status = 'aborted';
create index todoku_delivery_message on todoku_delivery (message_seq);

-- A lane with work (I10). id is the hash of (destination, key).
create table todoku_lane (
    id          integer primary key,
    queue       text not null,
    destination text not null,
    ready_at    integer not null,
    worker_id   text,
    epoch       integer not null default 0,
    failures    integer not null default 0,
    parked      integer not null default 0
) strict;
create index todoku_lane_due on todoku_lane (queue, destination, ready_at, id)
    where worker_id is null and parked = 0;
create index todoku_lane_owner on todoku_lane (worker_id) where worker_id is not null;

-- One narrow row per succeeded delivery. The epoch and the worker are what a read-back looks for (H4).
create table todoku_history (
    finished_at  integer not null,
    delivery_id  integer not null,
    epoch        integer not null,
    message_seq  integer not null,
    destination  text not null,
    queue        text not null,
    attempts     integer not null,
    replay_count integer not null,
    worker_id    text
) strict;
create index todoku_history_message on todoku_history (message_seq);
create index todoku_history_finished on todoku_history (finished_at);

-- One row per failed attempt; (replay, number, epoch) keeps what a replay would otherwise forget (I4).
create table todoku_attempt (
    delivery_id     integer not null,
    replay          integer not null,
    number          integer not null,
    epoch           integer not null,
    started_at      integer,
    ended_at        integer not null,
    reason          text not null,
    error           text,
    worker_id       text,
    response_status integer
) strict;
create index todoku_attempt_delivery on todoku_attempt (delivery_id, epoch);
create index todoku_attempt_ended on todoku_attempt (ended_at);

create table todoku_result (
    delivery_id integer primary key,
    message_seq integer not null,
    result      text not null,
    created_at  integer not null
) strict;
create index todoku_result_message on todoku_result (message_seq);
create index todoku_result_created on todoku_result (created_at);

-- Idempotency. Publish entries (scope publish:<topic>) find the earlier message; effect entries
-- (scope effect:<destination>) say what was done (I5).
create table todoku_ledger (
    scope       text not null,
    key_hash    text not null,
    digest      text not null,
    state       text not null check (state in ('accepted', 'succeeded', 'failed')),
    message_id  text,
    http_status integer,
    response    text,
    created_at  integer not null,
    updated_at  integer not null,
    expires_at  integer not null default 9223372036854775807,
    primary key (scope, key_hash)
) strict, without rowid;
create index todoku_ledger_expiring on todoku_ledger (expires_at) where expires_at < 9223372036854775807;

create table todoku_inbox (
    consumer   text not null,
    message_id text not null,
    seen_at    integer not null,
    primary key (consumer, message_id)
) strict, without rowid;
create index todoku_inbox_seen on todoku_inbox (seen_at);

-- The lease: one row per worker incarnation, never renewed once it ended (H1).
create table todoku_worker (
    id         text primary key,
    name       text not null,
    state      text not null default 'running',
    started_at integer not null,
    expires_at integer not null
) strict;

create table todoku_queue (
    name       text primary key,
    paused     integer not null default 0,
    "limit"    integer,
    updated_at integer not null
) strict;
create table todoku_destination (
    name       text primary key,
    open_until integer not null default 0,
    failures   integer not null default 0,
    "limit"    integer,
    on_abort   text not null default 'block' check (on_abort in ('block', 'skip')),
    seen_at    integer not null
) strict;
create table todoku_route (
    pattern     text not null,
    destination text not null,
    queue       text not null,
    ordered     integer not null default 0,
    updated_at  integer not null,
    primary key (pattern, destination)
) strict;

create table todoku_schedule (
    name        text primary key,
    spec        text not null,
    next_run_at integer,
    paused      integer not null default 0,
    updated_at  integer not null
) strict;
create table todoku_endpoint (
    id         text primary key,
    url        text not null,
    state      text not null default 'enabled',
    spec       text not null,
    updated_at integer not null
) strict;
create table todoku_api_key (
    id         text primary key,
    name       text not null,
    hash       text not null unique,
    scopes     text not null,
    created_at integer not null,
    expires_at integer,
    revoked_at integer
) strict;

-- Who did what to which delivery, and why. Append-only; a maintainer seals its hash chain elsewhere (H28).
create table todoku_audit (
    id     integer primary key autoincrement,
    at     integer not null,
    by     text not null,
    action text not null,
    target text not null,
    why    text not null
) strict;
create index todoku_audit_target on todoku_audit (target);
create trigger todoku_audit_no_update before update on todoku_audit
    begin select raise(abort, 'todoku_audit is append-only'); end;
create trigger todoku_audit_no_delete before delete on todoku_audit
    begin select raise(abort, 'todoku_audit is append-only'); end;

-- Sampled counts with their age: counting ten million rows on each look would not be cheap.
create table todoku_count (
    name       text primary key,
    counted_at integer not null,
    value      text not null
) strict;
