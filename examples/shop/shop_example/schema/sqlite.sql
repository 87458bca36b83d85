-- The shop's own table, beside todoku's, and the seed's outbox as a view. Nothing is done that is done already.
create table if not exists orders (
    id         text primary key,
    user_id    text not null,
    amount     integer not null check (amount > 0),
    status     text not null,
    created_at text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now'))
) strict;

-- todoku keeps what is not sent, and dead letters, in todoku_delivery, and what is sent in todoku_history.
-- Attempts are counted when they begin; the seed counts those that failed.
create view if not exists outbox as
select message.id,
       message.topic as event_type,
       message.key as aggregate_id,
       message.payload,
       case delivery.status when 'sending' then 'PROCESSING' when 'aborted' then 'FAILED' else 'PENDING' end as status,
       case delivery.status when 'sending' then delivery.attempts - 1 else delivery.attempts end as attempts,
       strftime('%Y-%m-%d %H:%M:%f', delivery.next_run_at / 1000000.0, 'unixepoch') as next_attempt_at,
       strftime('%Y-%m-%d %H:%M:%f', message.created_at / 1000000.0, 'unixepoch') as created_at,
       null as published_at
  from todoku_delivery as delivery
  join todoku_message as message on message.seq = delivery.message_seq
 where delivery.destination = 'bus'
union all
select message.id,
       message.topic,
       message.key,
       message.payload,
       'PUBLISHED',
       max(history.attempts - 1, 0),
       strftime('%Y-%m-%d %H:%M:%f', message.created_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', message.created_at / 1000000.0, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', history.finished_at / 1000000.0, 'unixepoch')
  from todoku_history as history
  join todoku_message as message on message.seq = history.message_seq
 where history.destination = 'bus';
