-- The example's own tables, beside todoku's. Nothing is done that is done already. Times are Stripe's: unix seconds.
-- Who comes second waits: `if not exists` of two at once can still collide in the catalogue.
select pg_advisory_xact_lock(hashtext('payments_example'));

create table if not exists participants (
    id     text primary key,
    email  text,
    intent text unique
);

-- rank: of two events of one second, what counts as the later.
create table if not exists payments (
    intent         text primary key,
    participant_id text not null,
    status         text not null check (status in ('failed', 'succeeded', 'refunded')),
    amount         bigint not null,
    currency       text not null,
    event_at       bigint not null,
    rank           integer not null
);

-- Every event that was applied, or came too late to be: none is applied twice.
create table if not exists payment_events (
    stripe_event_id text primary key,
    type            text not null,
    intent          text not null,
    applied         boolean not null,
    created_at      timestamptz not null default now()
);
