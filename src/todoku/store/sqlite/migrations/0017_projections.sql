-- A destination that keeps another store equal to the events of some topics. `revision` rises whenever the set of
-- indexes that workers write changes.
create table todoku_projection (
    name       text primary key,
    kind       text not null,
    state      text not null default 'running' check (state in ('running', 'stopped')),
    why        text,
    revision   integer not null default 1,
    readable   integer not null default 0,
    created_at integer not null,
    updated_at integer not null
) strict;

-- The indexes of a projection. `generation` is part of every version that is written to the index, and never changes.
-- `position` and the counts are those of its back-fill.
create table todoku_projection_index (
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

-- The revision by which a worker writes. A worker has no row before its first write.
create table todoku_projection_writer (
    projection text not null,
    worker_id  text not null,
    revision   integer not null,
    primary key (projection, worker_id)
) strict, without rowid;

-- Lanes that wait for a person: few, and the lag of a projection counts their deliveries.
create index todoku_lane_parked on todoku_lane (queue) where parked = 1;
