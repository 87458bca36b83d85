-- Tables of a PostgreSQL database whose changes are published. `lsn` is the end of the last source transaction that is
-- stored; owner and epoch fence the worker that reads. `state_at`: since when it is in this state.
create table todoku_capture (
    name            text primary key,
    slot            text not null,
    publication     text not null,
    state           text not null default 'starting'
                    check (state in ('starting', 'snapshot', 'streaming', 'away', 'stopped')),
    reason          text,
    why             text,
    state_at        timestamptz not null default todoku_now(),
    owner           uuid,
    owner_name      text,
    epoch           bigint not null default 0,
    lsn             bigint not null default 0,
    newest_xid      bigint,
    system_id       text,
    timeline        bigint,
    publication_oid bigint,
    generation      integer not null default 1,
    behind_bytes    bigint,
    retained_bytes  bigint,
    measured_at     timestamptz,
    warnings        json not null default '[]',
    changes         bigint not null default 0,
    committed_at    timestamptz,
    created_at      timestamptz not null default todoku_now(),
    updated_at      timestamptz not null default todoku_now()
);

-- The tables of a capture. `phase`, `position` and the counts are those of the snapshot. `key_set` names the rows of
-- todoku_capture_key that belong to this table: a TRUNCATE gives it a new one, whatever the number of keys.
create table todoku_capture_table (
    capture      text not null,
    table_name   text not null,
    topic        text not null,
    key_columns  json not null,
    relation_oid bigint,
    snapshot     boolean not null,
    phase        text not null check (phase in ('waiting', 'reading', 'sweeping', 'done')),
    position     text,
    copied       bigint not null default 0,
    expected     bigint not null default 0,
    generation   integer not null,
    key_set      bigint not null unique,
    primary key (capture, table_name)
);

-- The keys of rows that were published as existing, with the generation of the snapshot, or of the stream, that has seen
-- them last. There may be as many as the source tables have rows.
create table todoku_capture_key (
    key_set    bigint not null,
    key        text not null,
    generation integer not null,
    primary key (key_set, key)
);
create index todoku_capture_key_generation on todoku_capture_key (key_set, generation);

-- Parts of a large source transaction, until its end arrives and all of them are published by one commit.
create table todoku_capture_stage (
    capture      text not null,
    epoch        bigint not null,
    number       integer not null,
    drafts       integer not null,
    destinations json not null,
    data         bytea not null,
    primary key (capture, epoch, number)
);
