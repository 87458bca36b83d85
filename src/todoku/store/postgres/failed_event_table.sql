-- The application's table of failed events.

-- name: failed_events_there
-- Only reads: the application may have created the table itself, and a role that may write to it need not be allowed
-- to create one.
select 1 where to_regclass(cast(:bare as text)) is not null

-- name: failed_events_lock
-- Two transactions that create the same table at once would conflict; the lock ends with the transaction.
select 1 from pg_advisory_xact_lock(hashtext('todoku_failed_events'))

-- name: failed_events_create
-- Changes nothing if the table exists.
create table if not exists failed_webhook_events (
    event_id text primary key,
    payload text not null,
    error text not null,
    created_at timestamptz not null,
    message_id text not null,
    dlq_id text not null,
    request text not null,
    rerun_at timestamptz,
    rerun_by text,
    rerun_why text)

-- name: failed_events_now
-- Only reads the clock that the other queries on this table use.
select cast(statement_timestamp() as text)

-- name: failed_event_add
-- The event id decides: an event is stored once. If it was sent again and is a dead letter at a later `looked_at`, it
-- has failed again, and its row is reopened. The dead letters of one message are numbered: a late hook of an earlier
-- one does not overwrite a later one.
insert into failed_webhook_events as f (event_id, payload, error, created_at, message_id, dlq_id, request)
values (cast(:event_id as text), cast(:payload as text), cast(:error as text), statement_timestamp(),
        cast(:message_id as text), cast(:dlq_id as text), cast(:request as text))
    on conflict (event_id) do update
   set payload = excluded.payload, error = excluded.error, message_id = excluded.message_id,
       dlq_id = excluded.dlq_id, request = excluded.request, rerun_at = null, rerun_by = null, rerun_why = null
 where (f.dlq_id <> excluded.dlq_id or f.rerun_at < cast(cast(:looked_at as text) as timestamptz))
   and (f.message_id <> excluded.message_id
        or (length(f.dlq_id), f.dlq_id) <= (length(excluded.dlq_id), excluded.dlq_id))
returning 1

-- name: failed_event
-- Only reads.
select event_id, payload, error, to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), message_id, dlq_id, request,
       to_char(rerun_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), rerun_by, rerun_why
  from failed_webhook_events where event_id = cast(:event_id as text)

-- name: failed_event_rerun
-- Records who sent the event again, after it was sent; a second rerun overwrites the first. An event that failed again
-- meanwhile has another dlq_id, and stays open.
update failed_webhook_events
   set rerun_at = statement_timestamp(), rerun_by = cast(:rerun_by as text), rerun_why = cast(:rerun_why as text)
 where event_id = cast(:event_id as text) and dlq_id = cast(:dlq_id as text)
returning 1
