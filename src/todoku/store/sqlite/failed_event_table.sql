-- The application's table of failed events.

-- name: failed_events_there
-- Only reads: the application may have created the table itself.
select 1 from sqlite_schema where type = 'table' and name = :bare

-- name: failed_events_lock
-- Only reads: there is one writer at a time.
select 1

-- name: failed_events_create
-- Changes nothing if the table exists.
create table if not exists failed_webhook_events (
    event_id text primary key,
    payload text not null,
    error text not null,
    created_at text not null,
    message_id text not null,
    dlq_id text not null,
    request text not null,
    rerun_at text,
    rerun_by text,
    rerun_why text) strict

-- name: failed_events_now
-- Only reads the clock that the other queries on this table use.
select strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- name: failed_event_add
-- The event id decides: an event is stored once. If it was sent again and is a dead letter at a later `looked_at`, it
-- has failed again, and its row is reopened. The dead letters of one message are numbered: a late hook of an earlier
-- one does not overwrite a later one.
insert into failed_webhook_events as f (event_id, payload, error, created_at, message_id, dlq_id, request)
values (:event_id, :payload, :error, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), :message_id, :dlq_id, :request)
    on conflict (event_id) do update
   set payload = excluded.payload, error = excluded.error, message_id = excluded.message_id,
       dlq_id = excluded.dlq_id, request = excluded.request, rerun_at = null, rerun_by = null, rerun_why = null
 where (f.dlq_id <> excluded.dlq_id or f.rerun_at < :looked_at)
   and (f.message_id <> excluded.message_id
        or (length(f.dlq_id), f.dlq_id) <= (length(excluded.dlq_id), excluded.dlq_id))
returning 1

-- name: failed_event
-- Only reads.
select event_id, payload, error, created_at, message_id, dlq_id, request, rerun_at, rerun_by, rerun_why
  from failed_webhook_events where event_id = :event_id

-- name: failed_event_rerun
-- Records who sent the event again, after it was sent; a second rerun overwrites the first. An event that failed again
-- meanwhile has another dlq_id, and stays open.
update failed_webhook_events
   set rerun_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), rerun_by = :rerun_by, rerun_why = :rerun_why
 where event_id = :event_id and dlq_id = :dlq_id
returning 1
