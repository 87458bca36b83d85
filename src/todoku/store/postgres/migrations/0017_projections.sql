-- A destination that keeps another store equal to the events of some topics. `revision` rises whenever the set of
-- indexes that workers write changes.
create table todoku_projection (
    name       text primary key,
    kind       text not null,
    state      text not null default 'running' check (state in ('running', 'stopped')),
    why        text,
    revision   integer not null default 1,
    readable   boolean not null default false,
    created_at timestamptz not null default todoku_now(),
    updated_at timestamptz not null default todoku_now()
);

-- The indexes of a projection. `generation` is part of every version that is written to the index, and never changes.
-- `position` and the counts are those of its back-fill.
create table todoku_projection_index (
    projection text not null,
    name       text not null,
    generation integer not null,
    role       text not null check (role in ('live', 'building', 'kept')),
    written    boolean not null default true,
    phase      text not null default '' check (phase in ('', 'waiting', 'filling', 'catching_up', 'comparing', 'ready')),
    position   text,
    step       bigint not null default 0,
    copied     bigint not null default 0,
    expected   bigint not null default 0,
    rejected   bigint not null default 0,
    created_at timestamptz not null default todoku_now(),
    updated_at timestamptz not null default todoku_now(),
    primary key (projection, name)
);

-- The revision by which a worker writes. A worker has no row before its first write.
create table todoku_projection_writer (
    projection text not null,
    worker_id  uuid not null,
    revision   integer not null,
    primary key (projection, worker_id)
);
