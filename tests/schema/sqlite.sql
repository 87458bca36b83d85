CREATE TABLE todoku_alert (
    name      text not null,
    sink      text not null,
    since     integer not null,
    seen_at   integer not null,
    next_at   integer not null,
    told_at   integer,
    ended     integer not null default 0,
    tries     integer not null default 0,
    value     real not null,
    threshold real not null,
    primary key (name, sink)
) strict, without rowid;

CREATE TABLE todoku_api_key (
    id         text primary key,
    name       text not null,
    hash       text not null unique,
    scopes     text not null,
    created_at integer not null,
    expires_at integer,
    revoked_at integer
, last_used_at integer) strict;

CREATE TABLE todoku_attempt (
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
, response text, message_seq integer, traceback text, fingerprint text, run_ms integer, final integer) strict;

CREATE INDEX todoku_attempt_delivery on todoku_attempt (delivery_id, epoch);

CREATE INDEX todoku_attempt_ended on todoku_attempt (ended_at);

CREATE TABLE todoku_audit (
    id     integer primary key autoincrement,
    at     integer not null,
    by     text not null,
    action text not null,
    target text not null,
    why    text not null
) strict;

CREATE TRIGGER todoku_audit_no_delete before delete on todoku_audit
    begin select raise(abort, 'todoku_audit is append-only'); end;

CREATE TRIGGER todoku_audit_no_update before update on todoku_audit
    begin select raise(abort, 'todoku_audit is append-only'); end;

CREATE INDEX todoku_audit_target on todoku_audit (target);

CREATE TABLE todoku_batch (
    id         text primary key,
    total      integer not null,
    open       integer not null,
    succeeded  integer not null default 0,
    aborted    integer not null default 0,
    "on"       text not null check ("on" in ('finished', 'succeeded')),
    next       text,
    created_at integer not null,
    done_at    integer
) strict, without rowid;

CREATE INDEX todoku_batch_done on todoku_batch (done_at) where done_at is not null;

CREATE INDEX todoku_batch_due on todoku_batch (id)
    where done_at is null and open = 0 and ("on" = 'finished' or aborted = 0);

CREATE TABLE todoku_capture (
    name            text primary key,
    slot            text not null,
    publication     text not null,
    state           text not null default 'starting'
                    check (state in ('starting', 'snapshot', 'streaming', 'away', 'stopped')),
    reason          text,
    why             text,
    state_at        integer not null,
    owner           text,
    owner_name      text,
    epoch           integer not null default 0,
    lsn             integer not null default 0,
    newest_xid      integer,
    system_id       text,
    timeline        integer,
    publication_oid integer,
    generation      integer not null default 1,
    behind_bytes    integer,
    retained_bytes  integer,
    measured_at     integer,
    warnings        text not null default '[]',
    changes         integer not null default 0,
    committed_at    integer,
    created_at      integer not null,
    updated_at      integer not null
) strict;

CREATE TABLE todoku_capture_key (
    key_set    integer not null,
    key        text not null,
    generation integer not null,
    primary key (key_set, key)
) strict, without rowid;

CREATE INDEX todoku_capture_key_generation on todoku_capture_key (key_set, generation);

CREATE TABLE todoku_capture_stage (
    capture      text not null,
    epoch        integer not null,
    number       integer not null,
    drafts       integer not null,
    destinations text not null,
    data         blob not null,
    primary key (capture, epoch, number)
) strict;

CREATE TABLE todoku_capture_table (
    capture      text not null,
    table_name   text not null,
    topic        text not null,
    key_columns  text not null,
    relation_oid integer,
    snapshot     integer not null,
    phase        text not null check (phase in ('waiting', 'reading', 'sweeping', 'done')),
    position     text,
    copied       integer not null default 0,
    expected     integer not null default 0,
    generation   integer not null,
    key_set      integer not null unique,
    primary key (capture, table_name)
) strict;

CREATE TABLE todoku_count (
    name       text primary key,
    counted_at integer not null,
    value      text not null
) strict;

CREATE TABLE todoku_data_key (
    seq           integer primary key autoincrement,
    id            text not null,
    day           text not null,
    master_key_id text not null,
    wrapped       blob not null,
    created_at    integer not null
) strict;

CREATE INDEX todoku_data_key_id on todoku_data_key (id);

CREATE TABLE todoku_delivery (
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
    error            text, gate integer, fingerprint text,
    check ((status = 'sending') = (worker_id is not null))
) strict;

CREATE INDEX todoku_delivery_cause on todoku_delivery (reason, destination, fingerprint, updated_at)
    where status = 'aborted';

CREATE INDEX todoku_delivery_dead on todoku_delivery (id)
    where status = 'aborted';

CREATE INDEX todoku_delivery_died on todoku_delivery (updated_at, id)
    where status = 'aborted' and substr(queue || ':', 1, 5) in ('http:', 'flow:');

CREATE INDEX todoku_delivery_due on todoku_delivery (queue, destination, priority, next_run_at, id, expires_at)
    where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null;

CREATE INDEX todoku_delivery_expiring on todoku_delivery (expires_at)
    where status in ('pending', 'failed') and expires_at < 9223372036854775807;

CREATE INDEX todoku_delivery_fingerprint on todoku_delivery (fingerprint, id)
    where status = 'aborted' and fingerprint is not null;

CREATE INDEX todoku_delivery_gate on todoku_delivery (gate, priority, next_run_at, id, expires_at)
    where status in ('pending', 'failed') and gate is not null;

CREATE INDEX todoku_delivery_gate_running on todoku_delivery (gate)
    where status = 'sending' and gate is not null;

CREATE INDEX todoku_delivery_lane on todoku_delivery (lane, id)
    where lane is not null and status <> 'aborted';

CREATE INDEX todoku_delivery_lane_dead on todoku_delivery (lane, id)
    where status = 'aborted' and lane is not null;

CREATE INDEX todoku_delivery_message on todoku_delivery (message_seq);

CREATE INDEX todoku_delivery_owner on todoku_delivery (worker_id)
    where status = 'sending';

CREATE INDEX todoku_delivery_suspect on todoku_delivery (queue, destination, next_run_at, id)
    where status in ('pending', 'failed') and lane is null and lost > 0;

CREATE TABLE todoku_destination (
    name       text primary key,
    open_until integer not null default 0,
    failures   integer not null default 0,
    "limit"    integer,
    on_abort   text not null default 'block' check (on_abort in ('block', 'skip')),
    seen_at    integer not null
, rate real check (rate > 0), limit_until integer, tat integer) strict;

CREATE TABLE todoku_endpoint (
    id         text primary key,
    url        text not null,
    state      text not null default 'enabled',
    spec       text not null,
    updated_at integer not null
, group_name text, name text, reason text, created_at integer) strict;

CREATE UNIQUE INDEX todoku_endpoint_place on todoku_endpoint (group_name, url);

CREATE TABLE todoku_gate (
    id          integer primary key,
    queue       text not null,
    destination text not null,
    key         text not null,
    "limit"     integer check ("limit" > 0),
    rate        real check (rate > 0),
    running     integer not null default 0,
    ready_at    integer not null,
    tat         integer
) strict;

CREATE TABLE todoku_gate_call (
    id          integer primary key autoincrement,
    queue       text not null,
    destination text not null,
    gate        integer not null,
    key         text not null
) strict;

CREATE INDEX todoku_gate_call_place on todoku_gate_call (queue, destination, id);

CREATE INDEX todoku_gate_due on todoku_gate (queue, destination, ready_at, id)
    where ("limit" is null or running < "limit") and ready_at < 9223372036854775807;

CREATE TABLE todoku_group (
    name       text primary key,
    headers    text,
    created_at integer not null,
    updated_at integer not null
) strict, without rowid;

CREATE TABLE todoku_history (
    finished_at  integer not null,
    delivery_id  integer not null,
    epoch        integer not null,
    message_seq  integer not null,
    destination  text not null,
    queue        text not null,
    attempts     integer not null,
    replay_count integer not null,
    worker_id    text
, run_ms integer) strict;

CREATE INDEX todoku_history_finished on todoku_history (finished_at);

CREATE INDEX todoku_history_http on todoku_history (finished_at, delivery_id)
    where substr(queue || ':', 1, 5) in ('http:', 'flow:');

CREATE INDEX todoku_history_message on todoku_history (message_seq);

CREATE TABLE todoku_hook (
    name         text not null,
    event        text not null check (event in ('succeeded', 'aborted')),
    topic        text not null,
    destination  text,
    from_queue   text,
    queue        text not null,
    max_attempts integer not null check (max_attempts > 0),
    timeout      real,
    seen_at      integer not null,
    primary key (name, event)
) strict, without rowid;

CREATE TABLE todoku_http_event (
    id         integer primary key,
    run_id     text not null,
    event_id   text not null,
    data       text not null,
    created_at integer not null
) strict;

CREATE INDEX todoku_http_event_run on todoku_http_event (run_id, event_id, id);

CREATE TABLE todoku_http_run (
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

CREATE INDEX todoku_http_run_created on todoku_http_run (created_at, id);

CREATE TABLE todoku_http_run_step (
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

CREATE INDEX todoku_http_run_updated on todoku_http_run (updated_at);

CREATE TABLE todoku_http_waiter (
    run_id     text not null,
    step_key   text not null,
    event_id   text not null,
    step       text not null,
    message_id text not null,
    deadline   integer not null,
    created_at integer not null,
    primary key (run_id, step_key)
) strict, without rowid;

CREATE INDEX todoku_http_waiter_event on todoku_http_waiter (event_id, run_id);

CREATE TABLE todoku_http_webhook (
    digest     text primary key,
    run_id     text not null,
    origin     text not null,
    created_at integer not null
) strict, without rowid;

CREATE INDEX todoku_http_webhook_run on todoku_http_webhook (run_id);

CREATE TABLE todoku_inbox (
    consumer   text not null,
    message_id text not null,
    seen_at    integer not null,
    primary key (consumer, message_id)
) strict, without rowid;

CREATE INDEX todoku_inbox_seen on todoku_inbox (seen_at);

CREATE TABLE todoku_inbox_sequence (
    consumer text not null,
    key      text not null,
    sequence integer not null,
    seen_at  integer not null,
    primary key (consumer, key)
) strict, without rowid;

CREATE TABLE todoku_label (
    label       text not null,
    message_seq integer not null,
    primary key (label, message_seq)
) strict, without rowid;

CREATE TABLE todoku_lane (
    id          integer primary key,
    queue       text not null,
    destination text not null,
    ready_at    integer not null,
    worker_id   text,
    epoch       integer not null default 0,
    failures    integer not null default 0,
    parked      integer not null default 0
) strict;

CREATE INDEX todoku_lane_due on todoku_lane (queue, destination, ready_at, id)
    where worker_id is null and parked = 0;

CREATE INDEX todoku_lane_owner on todoku_lane (worker_id) where worker_id is not null;

CREATE INDEX todoku_lane_parked on todoku_lane (queue) where parked = 1;

CREATE TABLE todoku_ledger (
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

CREATE INDEX todoku_ledger_expiring on todoku_ledger (expires_at) where expires_at < 9223372036854775807;

CREATE TABLE todoku_message (
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

CREATE INDEX todoku_message_http on todoku_message (id) where topic in ('http.request', 'http.callback');

CREATE INDEX todoku_message_key on todoku_message (key) where key is not null;

CREATE INDEX todoku_message_key_hash on todoku_message (key_hash) where key_hash is not null;

CREATE TABLE todoku_migration (
    version integer primary key, name text not null, checksum text not null, applied_at integer not null) strict;

CREATE TABLE todoku_projection (
    name       text primary key,
    kind       text not null,
    state      text not null default 'running' check (state in ('running', 'stopped')),
    why        text,
    revision   integer not null default 1,
    readable   integer not null default 0,
    created_at integer not null,
    updated_at integer not null
) strict;

CREATE TABLE todoku_projection_index (
    projection text not null,
    name       text not null,
    generation integer not null,
    role       text not null check (role in ('live', 'building', 'kept')),
    written    integer not null default 1,
    phase      text not null default '' check (phase in ('', 'waiting', 'filling', 'catching_up', 'comparing', 'ready')),
    position   text,
    step       integer not null default 0,
    copied     integer not null default 0,
    expected   integer not null default 0,
    rejected   integer not null default 0,
    created_at integer not null,
    updated_at integer not null,
    primary key (projection, name)
) strict;

CREATE TABLE todoku_projection_writer (
    projection text not null,
    worker_id  text not null,
    revision   integer not null,
    primary key (projection, worker_id)
) strict, without rowid;

CREATE TABLE todoku_queue (
    name       text primary key,
    paused     integer not null default 0,
    "limit"    integer,
    updated_at integer not null
, rate real check (rate > 0), limit_until integer, tat integer, created_at integer, spec text) strict;

CREATE TABLE todoku_result (
    delivery_id integer primary key,
    message_seq integer not null,
    result      text not null,
    created_at  integer not null
) strict;

CREATE INDEX todoku_result_created on todoku_result (created_at);

CREATE INDEX todoku_result_message on todoku_result (message_seq);

CREATE TABLE todoku_route (
    pattern     text not null,
    destination text not null,
    queue       text not null,
    ordered     integer not null default 0,
    updated_at  integer not null,
    primary key (pattern, destination)
) strict;

CREATE TABLE todoku_run_call (
    id          integer primary key,
    message_seq integer not null,
    awaits      text not null
) strict;

CREATE TABLE todoku_schedule (
    name        text primary key,
    spec        text not null,
    next_run_at integer,
    paused      integer not null default 0,
    updated_at  integer not null
, source text not null default 'stored' check (source in ('code', 'stored')), seen_at integer, last_run_at integer, last_message_id text, error text, missed_slots integer not null default 0, missed_last integer not null default 0, missed_at integer) strict;

CREATE INDEX todoku_schedule_due on todoku_schedule (next_run_at) where paused = 0;

CREATE TABLE todoku_secret (
    id            text primary key,
    name          text not null,
    value         blob not null,
    master_key_id text,
    created_at    integer not null,
    expires_at    integer not null default 9223372036854775807
) strict, without rowid;

CREATE INDEX todoku_secret_name on todoku_secret (name);

CREATE TABLE todoku_session (
    hash       text primary key,
    kind       text not null,
    subject    text not null,
    name       text not null,
    role       text not null,
    csrf       text not null,
    created_at integer not null,
    seen_at    integer not null,
    expires_at integer not null
) strict, without rowid;

CREATE INDEX todoku_session_expires on todoku_session (expires_at);

CREATE INDEX todoku_session_subject on todoku_session (kind, subject);

CREATE TABLE todoku_signal (
    id          integer primary key,
    message_seq integer not null,
    name        text not null,
    payload     text not null,
    created_at  integer not null,
    step_key    text
) strict;

CREATE INDEX todoku_signal_run on todoku_signal (message_seq, name, id);

CREATE TABLE todoku_step (
    message_seq integer not null,
    step_key    text not null,
    number      integer not null,
    name        text not null,
    kind        text not null check (kind in ('step', 'sleep', 'wait', 'children', 'publish', 'value', 'undo')),
    state       text not null check (state in ('open', 'done', 'failed', 'fatal', 'undone', 'rewound')),
    arguments   text,
    result      text,
    error       text,
    undo        text,
    attempts    integer not null default 0,
    replay      integer not null default 0,
    awaits      text,
    wake_at     integer,
    started_at  integer not null,
    ended_at    integer,
    epoch       integer not null,
    primary key (message_seq, step_key)
) strict, without rowid;

CREATE INDEX todoku_step_awaits on todoku_step (awaits) where state = 'open' and awaits is not null;

CREATE TABLE todoku_user (
    name       text primary key,
    hash       text not null,
    role       text not null,
    disabled   integer not null default 0,
    created_at integer not null,
    changed_at integer not null
) strict, without rowid;

CREATE TABLE todoku_worker (
    id         text primary key,
    name       text not null,
    state      text not null default 'running',
    started_at integer not null,
    expires_at integer not null
, slots integer, version text, drain_requested integer not null default 0, stack_request integer not null default 0, stacks_answer integer, stacks_at integer, stacks text) strict;
