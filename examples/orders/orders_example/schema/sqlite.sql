-- The seed's tables as views on todoku's: reading is for everybody, changing is for `todoku`.
-- A view is made anew each time: it holds nothing.
begin immediate;
drop view if exists outbox_orders;
drop view if exists idempo_ledger;

-- todoku keeps what is not done, and dead letters, in todoku_delivery, and what is done in todoku_history.
create view outbox_orders as
select delivery.id,
       message.key as idempotency_key,
       message.payload as order_request_json,
       message.digest as request_digest,
       delivery.status,
       delivery.attempts,
       delivery.reason as last_error_code,
       delivery.error as last_error_msg,
       worker.name as locked_by,
       case delivery.status when 'sending'
            then strftime('%Y-%m-%d %H:%M:%f', delivery.claimed_at / 1e6, 'unixepoch') end as locked_at,
       strftime('%Y-%m-%d %H:%M:%f', delivery.next_run_at / 1e6, 'unixepoch') as next_run_at,
       strftime('%Y-%m-%d %H:%M:%f', message.created_at / 1e6, 'unixepoch') as created_at,
       strftime('%Y-%m-%d %H:%M:%f', delivery.updated_at / 1e6, 'unixepoch') as updated_at,
       case when delivery.expires_at < 9223372036854775807
            then strftime('%Y-%m-%d %H:%M:%f', delivery.expires_at / 1e6, 'unixepoch') end as expires_at
  from todoku_delivery as delivery
  join todoku_message as message on message.seq = delivery.message_seq
  left join todoku_worker as worker on worker.id = delivery.worker_id
 where delivery.destination = 'orders'
union all
select history.delivery_id,
       message.key,
       message.payload,
       message.digest,
       'succeeded',
       history.attempts,
       null,
       null,
       null,
       null,
       null,
       strftime('%Y-%m-%d %H:%M:%f', message.created_at / 1e6, 'unixepoch'),
       strftime('%Y-%m-%d %H:%M:%f', history.finished_at / 1e6, 'unixepoch'),
       null
  from todoku_history as history
  join todoku_message as message on message.seq = history.message_seq
 where history.destination = 'orders';

-- The ledger has only the hash of a key; the message of the order knows the key.
create view idempo_ledger as
select (select message.key from todoku_message as message
         where message.key_hash = ledger.key_hash and message.topic = 'order.requested' limit 1) as idempotency_key,
       ledger.digest as request_digest,
       ledger.state as status,
       ledger.http_status,
       ledger.response as response_payload_json,
       strftime('%Y-%m-%d %H:%M:%f', ledger.created_at / 1e6, 'unixepoch') as created_at,
       strftime('%Y-%m-%d %H:%M:%f', ledger.updated_at / 1e6, 'unixepoch') as updated_at,
       strftime('%Y-%m-%d %H:%M:%f', ledger.expires_at / 1e6, 'unixepoch') as expires_at
  from todoku_ledger as ledger
 where ledger.scope = 'once:orders';

commit;
