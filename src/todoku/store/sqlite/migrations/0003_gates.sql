-- Limits that hold exactly: what is in flight is counted when a claim is made, and a rate is kept by one clock for all
-- workers. tat is the theoretical arrival time (GCRA): when the next start would be on time. Null: none is kept yet.
alter table todoku_queue add column tat integer;
alter table todoku_destination add column tat integer;

-- A delivery with a gate is claimed through it, so it is not in the due index: what a full gate holds back is never
-- walked. One whose owner died is a suspect like any other.
alter table todoku_delivery add column gate integer;
drop index todoku_delivery_due;
create index todoku_delivery_due on todoku_delivery (queue, destination, priority, next_run_at, id, expires_at)
    where status in ('pending', 'failed') and lane is null and lost = 0 and gate is null;
create index todoku_delivery_gate on todoku_delivery (gate, priority, next_run_at, id, expires_at)
    where status in ('pending', 'failed') and gate is not null;
create index todoku_delivery_gate_running on todoku_delivery (gate)
    where status = 'sending' and gate is not null;

-- The deliveries of one destination that share a key and a limit. id is the hash of (destination, key). running is
-- counted anew whenever one of them ends; ready_at is when to look again: never, if nothing waits.
create table todoku_gate (
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
create index todoku_gate_due on todoku_gate (queue, destination, ready_at, id)
    where ("limit" is null or running < "limit") and ready_at < 9223372036854775807;

-- Somebody published to a gate. Publishers only append here, so they wait for nobody and nobody for them; who claims
-- takes the calls away and looks at their gates.
create table todoku_gate_call (
    id          integer primary key autoincrement,
    queue       text not null,
    destination text not null,
    gate        integer not null,
    key         text not null
) strict;
create index todoku_gate_call_place on todoku_gate_call (queue, destination, id);
