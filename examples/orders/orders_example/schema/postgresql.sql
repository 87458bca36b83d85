-- The seed's tables as views on todoku's: reading is for everybody, changing is for `todoku`.
-- Who comes second waits: two that replace a view at once can still collide in the catalogue.
select pg_advisory_xact_lock(hashtext('orders_example'));

-- todoku keeps what is not done, and dead letters, in todoku_delivery, and what is done in todoku_history.
create or replace view outbox_orders as
select delivery.id,
       message.key as idempotency_key,
       message.payload::jsonb as order_request_json,
       message.digest as request_digest,
       delivery.status,
       delivery.attempts,
       delivery.reason as last_error_code,
       delivery.error as last_error_msg,
       worker.name as locked_by,
       case delivery.status when 'sending' then delivery.claimed_at end as locked_at,
       delivery.next_run_at,
       message.created_at,
       delivery.updated_at,
       nullif(delivery.expires_at, 'infinity') as expires_at
  from todoku_delivery as delivery
  join todoku_message as message on message.seq = delivery.message_seq
  left join todoku_worker as worker on worker.id = delivery.worker_id
 where delivery.destination = 'orders'
union all
select history.delivery_id,
       message.key,
       message.payload::jsonb,
       message.digest,
       'succeeded',
       history.attempts,
       null,
       null,
       null,
       null,
       null,
       message.created_at,
       history.finished_at,
       null
  from todoku_history as history
  join todoku_message as message on message.seq = history.message_seq
 where history.destination = 'orders';

-- The ledger has only the hash of a key; the message of the order knows the key. A view of one table alone could be
-- written through, so the join is good for that, too.
create or replace view idempo_ledger as
select message.key as idempotency_key,
       ledger.digest as request_digest,
       ledger.state as status,
       ledger.http_status,
       ledger.response::jsonb as response_payload_json,
       ledger.created_at,
       ledger.updated_at,
       ledger.expires_at
  from todoku_ledger as ledger
  left join lateral (
       select key from todoku_message
        where key_hash = ledger.key_hash and topic = 'order.requested' limit 1) as message on true
 where ledger.scope = 'once:orders';
