-- What follows the end of a delivery: hooks are told of it, batches count it and go on when they are complete.

-- A destination that is told of every delivery that ends so. Workers announce the hooks they serve: whoever ends a
-- delivery, also a person without the program, finds them here.
create table todoku_hook (
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

-- Calls that belong together. Their messages carry its id in a header; "next" is published when it is complete, and
-- is taken out then.
create table todoku_batch (
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
-- Complete, and what follows is not published yet: a few, for a moment.
create index todoku_batch_due on todoku_batch (id)
    where done_at is null and open = 0 and ("on" = 'finished' or aborted = 0);
create index todoku_batch_done on todoku_batch (done_at) where done_at is not null;
