-- The shop's own table, beside todoku's, and the seed's outbox as a view. Nothing is done that is done already.
-- Who comes second waits: `if not exists` of two at once can still collide in the catalogue.
select pg_advisory_xact_lock(hashtext('shop_example'));

create table if not exists orders (
    id         uuid primary key,
    user_id    uuid not null,
    amount     integer not null check (amount > 0),
    status     text not null,
    created_at timestamptz not null default now()
);

-- todoku keeps what is not sent, and dead letters, in todoku_delivery, and what is sent in todoku_history.
-- Attempts are counted when they begin; the seed counts those that failed.
create or replace view outbox as
select message.id,
       message.topic as event_type,
       case when message.key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then message.key::uuid end as aggregate_id,
       message.payload::jsonb as payload,
       case delivery.status when 'sending' then 'PROCESSING' when 'aborted' then 'FAILED' else 'PENDING' end as status,
       case delivery.status when 'sending' then delivery.attempts - 1 else delivery.attempts end::integer as attempts,
       delivery.next_run_at as next_attempt_at,
       message.created_at,
       null::timestamptz as published_at
  from todoku_delivery as delivery
  join todoku_message as message on message.seq = delivery.message_seq
 where delivery.destination = 'bus'
union all
select message.id,
       message.topic,
       case when message.key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then message.key::uuid end,
       message.payload::jsonb,
       'PUBLISHED',
       greatest(history.attempts - 1, 0)::integer,
       message.created_at,
       message.created_at,
       history.finished_at
  from todoku_history as history
  join todoku_message as message on message.seq = history.message_seq
 where history.destination = 'bus';
