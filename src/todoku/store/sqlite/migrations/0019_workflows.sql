-- Workflows. A run is one message with one delivery; what it has done so far is in its steps. A plain job touches none
-- of these tables.

-- A step of a run: what it was called with, and what it came to. `number` orders the steps of a run by their begin.
-- `awaits` is the name of the signal, or the id of the batch, that an open step waits for. `undo` is how to undo it.
-- `wake_at`: when a sleep, a wait or the pause before the next attempt is over. `replay`: the run's at that time.
create table todoku_step (
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
-- The end of a batch finds the run that waits for it.
create index todoku_step_awaits on todoku_step (awaits) where state = 'open' and awaits is not null;

-- A value that was sent to a run. `step_key`: the wait that it was delivered to.
create table todoku_signal (
    id          integer primary key,
    message_seq integer not null,
    name        text not null,
    payload     text not null,
    created_at  integer not null,
    step_key    text
) strict;
create index todoku_signal_run on todoku_signal (message_seq, name, id);

-- Something that a run may wait for has happened. Senders of signals and ends of batches only append here, so they
-- never touch the run; claims take the calls away and wake their runs.
create table todoku_run_call (
    id          integer primary key,
    message_seq integer not null,
    awaits      text not null
) strict;
