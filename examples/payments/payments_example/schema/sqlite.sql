-- The example's own tables, beside todoku's. Nothing is done that is done already. Times are Stripe's: unix seconds.
create table if not exists participants (
    id     text primary key,
    email  text,
    intent text unique
) strict;

-- rank: of two events of one second, what counts as the later.
create table if not exists payments (
    intent         text primary key,
    participant_id text not null,
    status         text not null check (status in ('failed', 'succeeded', 'refunded')),
    amount         integer not null,
    currency       text not null,
    event_at       integer not null,
    rank           integer not null
) strict;

-- Every event that was applied, or came too late to be: none is applied twice.
create table if not exists payment_events (
    stripe_event_id text primary key,
    type            text not null,
    intent          text not null,
    applied         integer not null,
    created_at      text not null default current_timestamp
) strict;
