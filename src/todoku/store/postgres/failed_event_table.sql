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
-- The event id decides: an event is stored once. If it was sent again and has failed after that, its row is reopened;
-- where the queue does not tell when it failed, it has if it is a dead letter at a later `looked_at`. The dead letters
-- of one message are numbered, and those of several messages have their times: an earlier failure, told of late, does
-- not overwrite a later one.
insert into failed_webhook_events as f (event_id, payload, error, created_at, message_id, dlq_id, request)
values (cast(:event_id as text), cast(:payload as text), cast(:error as text),
        coalesce(cast(cast(:failed_at as text) as timestamptz), statement_timestamp()), cast(:message_id as text), cast(:dlq_id as text), cast(:request as text))
    on conflict (event_id) do update
   set payload = excluded.payload, error = excluded.error, created_at = excluded.created_at,
       message_id = excluded.message_id, dlq_id = excluded.dlq_id, request = excluded.request,
       rerun_at = null, rerun_by = null, rerun_why = null
 where (f.dlq_id <> excluded.dlq_id
        or f.rerun_at < cast(coalesce(cast(:failed_at as text), cast(:looked_at as text)) as timestamptz))
   and f.created_at <= excluded.created_at
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

-- name: failed_events_open
-- Only reads: the rows whose event was not sent again.
select event_id, dlq_id from failed_webhook_events where rerun_at is null order by event_id

-- name: failed_event_close
-- A row that was closed before keeps who did it and why. A dead letter that came meanwhile has another dlq_id.
update failed_webhook_events
   set rerun_at = statement_timestamp(), rerun_by = cast(:rerun_by as text), rerun_why = cast(:rerun_why as text)
 where event_id = cast(:event_id as text) and rerun_at is null
   and (cast(:dlq_id as text) is null or dlq_id = cast(:dlq_id as text))
returning 1

-- name: failed_events_close_replayed
-- The number after the dash of a dlq_id is how often the delivery had been replayed: the next replay in the audit is
-- that of this dead letter. The message must be in this database: rows of a queue elsewhere have other ids. A second
-- worker finds nothing more to close.
update failed_webhook_events f
   set rerun_at = r.at, rerun_by = r.by, rerun_why = r.why
  from (select o.event_id, o.dlq_id, a.at, a.by, a.why
          from failed_webhook_events o
         cross join lateral (select at, by, why from todoku_audit
                              where target = 'delivery:' || split_part(o.dlq_id, '-', 1) and action = 'replay'
                              order by id offset cast(left(substring(o.dlq_id from '-([0-9]+)$'), 9) as integer)
                              limit 1) a
         where o.rerun_at is null and o.dlq_id ~ '^[0-9]+-[0-9]+$'
           and exists (select from todoku_message m
                        where m.id = case when o.message_id like '________-____-____-____-____________'
                                           and o.message_id ~ '^[0-9a-f-]+$'
                                           and length(replace(o.message_id, '-', '')) = 32
                                          then cast(o.message_id as uuid) end)) r
 where f.event_id = r.event_id and f.dlq_id = r.dlq_id and f.rerun_at is null
returning 1
