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
-- The event id decides: an event is stored once. If it was sent again and has failed after that, its row is reopened;
-- where the queue does not tell when it failed, it has if it is a dead letter at a later `looked_at`. The dead letters
-- of one message are numbered, and those of several messages have their times: an earlier failure, told of late, does
-- not overwrite a later one.
insert into failed_webhook_events as f (event_id, payload, error, created_at, message_id, dlq_id, request)
values (:event_id, :payload, :error, coalesce(:failed_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), :message_id,
        :dlq_id, :request)
    on conflict (event_id) do update
   set payload = excluded.payload, error = excluded.error, created_at = excluded.created_at,
       message_id = excluded.message_id, dlq_id = excluded.dlq_id, request = excluded.request,
       rerun_at = null, rerun_by = null, rerun_why = null
 where (f.dlq_id <> excluded.dlq_id or f.rerun_at < coalesce(:failed_at, :looked_at))
   and f.created_at <= excluded.created_at
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

-- name: failed_events_open
-- Only reads: the rows whose event was not sent again.
select event_id, dlq_id from failed_webhook_events where rerun_at is null order by event_id

-- name: failed_event_close
-- A row that was closed before keeps who did it and why. A dead letter that came meanwhile has another dlq_id.
update failed_webhook_events
   set rerun_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), rerun_by = :rerun_by, rerun_why = :rerun_why
 where event_id = :event_id and rerun_at is null and (:dlq_id is null or dlq_id = :dlq_id)
returning 1

-- name: failed_events_close_replayed
-- The number after the dash of a dlq_id is how often the delivery had been replayed: the next replay in the audit is
-- that of this dead letter. The message must be in this database: rows of a queue elsewhere have other ids. A second
-- worker finds nothing more to close.
update failed_webhook_events
   set (rerun_at, rerun_by, rerun_why) = (
       select strftime('%Y-%m-%dT%H:%M:%fZ', a.at / 1e6, 'unixepoch'), a.by, a.why from todoku_audit a
        where a.target = 'delivery:' || substr(dlq_id, 1, instr(dlq_id, '-') - 1) and a.action = 'replay'
          and cast(substr(dlq_id, instr(dlq_id, '-') + 1) as integer)
              = (select count(*) from todoku_audit b
                  where b.target = a.target and b.action = 'replay' and b.id < a.id))
 where rerun_at is null and dlq_id glob '[0-9]*-[0-9]*'
   and exists (select 1 from todoku_message m where m.id = message_id)
   and cast(substr(dlq_id, instr(dlq_id, '-') + 1) as integer)
       < (select count(*) from todoku_audit a
           where a.target = 'delivery:' || substr(dlq_id, 1, instr(dlq_id, '-') - 1) and a.action = 'replay')
returning 1
