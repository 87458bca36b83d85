-- Workflow runs over HTTP: their steps, and what they wait for.

-- name: http_run_columns
-- A fragment: a run. It has failed while one of its calls is a dead letter.
r.id, r.url,
       case when r.state = 'started' and exists (
                select from todoku_http_run_step s
                  join todoku_message m on m.id = s.message_id
                  join todoku_delivery d on d.message_seq = m.seq
                 where s.run_id = r.id and s.call_type = 'step' and d.status = 'aborted' and d.reason <> 'CANCELLED'
                offset 0)
            then 'failed' else r.state end as state,
       r.request, r.labels::text, r.invoker, r.result, r.steps, r.bytes, date_part('epoch', r.created_at), date_part('epoch', r.ended_at)

-- name: http_run
-- Only reads, by the primary key.
select {http_run_columns} from todoku_http_run r where r.id = :id

-- name: lock_http_run
-- Locked until the commit: all that is added to a run is added one after the other.
select {http_run_columns} from todoku_http_run r where r.id = :id for update of r

-- name: http_run_place
-- A fragment: host and path of a run's URL, which are cut out as in `request_matching`, and are among those asked for.
from (select substring(r.url from '^[^:]*://([^/?#]*)') as authority,
               coalesce(nullif(substring(r.url from '^[^:]*://[^/?#]*([^?#]*)'), ''), '/') as path) u
 where (:hosts::text[] is null
        or lower(case when :with_port::boolean then authority
                      when authority like '[%' then substring(authority from '^\[([^]]*)')
                      else split_part(authority, ':', 1) end) = any (:hosts::text[]))
   and (:paths::text[] is null or path = any (:paths::text[]))

-- name: http_runs
-- Only reads, newest first, from a position on. The options of a run that are sealed match no caller and no flow key.
select * from (select {http_run_columns}
  from todoku_http_run r
 where (:ids::text[] is null or r.id = any (:ids::text[]))
   and (:urls::text[] is null or r.url = any (:urls::text[]))
   and (:prefixes::text[] is null or exists (select from unnest(:prefixes::text[]) p where starts_with(r.url, p)))
   and ((:hosts::text[] is null and :paths::text[] is null) or exists (select {http_run_place}))
   and (:caller_ips::text[] is null or case when ascii(r.request::text) = 123 then r.request::json ->> 'caller_ip' end
            = any (:caller_ips::text[]))
   and (:flow_keys::text[] is null or case when ascii(r.request::text) = 123 then r.request::json -> 'flow' ->> 'key' end
            = any (:flow_keys::text[]))
   and (:messages::uuid[] is null or exists (
            select from (select s.message_id from todoku_http_run_step s where s.run_id = r.id offset 0) s
             where s.message_id = any (:messages::uuid[])))
   and (:labels::text[] is null or exists (select from json_array_elements_text(r.labels) l
                                            where l = any (:labels::text[])))
   and (:since::timestamptz is null or r.created_at >= :since) and (:until::timestamptz is null or r.created_at < :until)
   and (:before_at::timestamptz is null or (r.created_at, r.id) < (:before_at::timestamptz, :before_id::text))
 order by r.created_at desc, r.id desc) as run
 where :state::text is null or state = :state limit :most

-- name: create_http_run
-- One row; a second start of the same id changes nothing and returns no row.
insert into todoku_http_run (id, url, request, labels, invoker)
values (:id, :url, :request, :labels::json, :invoker)
    on conflict (id) do nothing
returning date_part('epoch', created_at)

-- name: http_run_step_message
-- Only reads, by a unique key, under the lock of the run: no step is added meanwhile.
select message_id from todoku_http_run_step where run_id = :run and step_key = :key

-- name: add_http_run_step
-- Under the lock of the run, so positions have no gaps; a second result for a key is refused by its unique index.
with run as (
    update todoku_http_run set steps = steps + 1, bytes = bytes + length(:body), updated_at = todoku_now()
     where id = :run
    returning id, steps
)
insert into todoku_http_run_step (run_id, position, step_key, message_id, call_type, name, type, body)
select id, steps - 1, :key, :message, :call_type, :name, :type, :body from run

-- name: set_http_run_request
-- Under the lock of the run: its next calls have the new options.
update todoku_http_run set request = :request, updated_at = todoku_now() where id = :run

-- name: replace_http_call
-- Under the lock of the run: a call that is a dead letter is made by another message. Its old message has no step then,
-- and is dropped should it be sent nevertheless. The second of two that do this at once finds no row.
update todoku_http_run_step set message_id = :new where run_id = :run and message_id = :old and call_type = 'step'
returning step_key

-- name: http_run_steps
-- Only reads. What steps contain is never changed while their run is there. Up to the step of a message; null: all.
select position, step_key, message_id, call_type, name, type, body, date_part('epoch', created_at) from todoku_http_run_step
 where run_id = :run
   and (:message::uuid is null or position <= (
            select position from todoku_http_run_step where run_id = :run and message_id = :message))
 order by position

-- name: http_run_initial
-- Only reads, by the primary key.
select body from todoku_http_run_step where run_id = :run and position = 0

-- name: http_run_calls
-- Only reads: the deliveries of a run that have not ended, those of its calls and of requests to third parties.
select d.id from todoku_http_run_step s
  join todoku_message m on m.id = s.message_id
  join todoku_delivery d on d.message_seq = m.seq
 where s.run_id = :run and d.status in ('pending', 'failed', 'sending')
 union
select d.id from todoku_http_waiter w
  join todoku_message m on m.id = w.message_id
  join todoku_delivery d on d.message_seq = m.seq
 where w.run_id = :run and d.status in ('pending', 'failed', 'sending')

-- name: end_http_run
-- Only a run that has not ended: the first end counts. Nothing waits for events, and no webhook is served, any more.
with waiter as (
    delete from todoku_http_waiter where run_id = :id
), event as (
    delete from todoku_http_event where run_id = :id
), webhook as (
    delete from todoku_http_webhook where run_id = :id
)
update todoku_http_run set state = :state, result = :result, ended_at = todoku_now(), updated_at = todoku_now()
 where id = :id and state = 'started'
returning id

-- name: http_waiters
-- Only reads. Of an event, in one run or in all.
select run_id, step_key, event_id, step, message_id, date_part('epoch', deadline) from todoku_http_waiter
 where event_id = :event and (:run::text is null or run_id = :run)
 order by run_id, step_key

-- name: http_waiter
-- Only reads, by the primary key, under the lock of the run.
select message_id from todoku_http_waiter where run_id = :run and step_key = :key

-- name: http_waiter_with
-- Only reads: whoever takes it then looks again, under the lock of the run.
select run_id, step_key, event_id, step, message_id, date_part('epoch', deadline) from todoku_http_waiter
 where run_id = :run and message_id = :message

-- name: add_http_waiter
-- Under the lock of the run: no event for it comes meanwhile.
insert into todoku_http_waiter (run_id, step_key, event_id, step, message_id, deadline)
values (:run, :key, :event, :step, :message, todoku_now() + :timeout * interval '1 second')

-- name: take_http_waiter
-- Whoever removes the row continues the run: an event, or the end of the time to wait.
delete from todoku_http_waiter where run_id = :run and message_id = :message
returning step_key

-- name: keep_http_event
-- Under the lock of the run, which does not wait for it yet.
insert into todoku_http_event (run_id, event_id, data) values (:run, :event, :data)

-- name: take_http_event
-- Under the lock of the run: the oldest one, once.
delete from todoku_http_event where id = (
    select id from todoku_http_event where run_id = :run and event_id = :event order by id limit 1)
returning data

-- name: kept_http_events
-- Only reads, under the lock of the run: none is kept meanwhile.
select count(*), coalesce(sum(length(data)), 0) from todoku_http_event where run_id = :run

-- name: add_http_webhook
-- Under the lock of the run, with the step that has created it. The digest is of random bytes: no other row has it.
insert into todoku_http_webhook (digest, run_id, origin) values (:digest, :run, :origin)

-- name: http_webhook
-- Only reads, by the primary key. The transaction that stores a request looks again, under the lock of the run.
select origin from todoku_http_webhook where digest = :digest and run_id = :run

-- name: hasten_http_call
-- Only a call that waits; one that a worker has taken reads the steps of its run anyway. The epoch rises (I4).
with call as (
    update todoku_delivery set next_run_at = todoku_now(), epoch = epoch + 1, updated_at = todoku_now()
     where status = 'pending' and message_seq = (select seq from todoku_message where id = :message)
    returning id
)
select id, pg_notify('todoku', '') from call

-- name: old_http_runs
-- A fragment: ended long ago, or abandoned: nothing of it waits, runs or is a dead letter.
select r.id from todoku_http_run r
 where r.updated_at < todoku_now() - :ttl * interval '1 second'
   and (r.state <> 'started' or (
        not exists (select from todoku_http_waiter w where w.run_id = r.id offset 0)
        and not exists (select from todoku_http_run_step s
                          join todoku_message m on m.id = s.message_id
                          join todoku_delivery d on d.message_seq = m.seq
                         where s.run_id = r.id offset 0)))
 order by r.updated_at, r.id limit :most for update of r skip locked

-- name: prune_http_runs
-- The rows are locked: nothing is added to them meanwhile. With their steps, events and webhooks, in one statement.
with old as materialized ({old_http_runs}), step as (
    delete from todoku_http_run_step where run_id in (select id from old)
), event as (
    delete from todoku_http_event where run_id in (select id from old)
), webhook as (
    delete from todoku_http_webhook where run_id in (select id from old)
)
delete from todoku_http_run where id in (select id from old)
returning 1
