-- Workflow runs over HTTP: their steps, and what they wait for.

-- name: http_run_columns
-- A fragment: a run. It has failed while one of its calls is a dead letter.
r.id, r.url,
       case when r.state = 'started' and exists (
                select 1 from todoku_http_run_step s
                  join todoku_message m on m.id = s.message_id
                  join todoku_delivery d on d.message_seq = m.seq
                 where s.run_id = r.id and s.call_type = 'step' and d.status = 'aborted' and d.reason <> 'CANCELLED')
            then 'failed' else r.state end as state,
       r.request, r.labels, r.invoker, r.result, r.steps, r.bytes, r.created_at / 1e6, r.ended_at / 1e6

-- name: http_run
-- Only reads, by the primary key.
select {http_run_columns} from todoku_http_run r where r.id = :id

-- name: lock_http_run
-- No lock to take: there is one writer.
select {http_run_columns} from todoku_http_run r where r.id = :id

-- name: http_run_place
-- A fragment: host and path of a run's URL, which are cut out as in `request_matching`, and are among those asked for.
from (select *, substr(tail, 1, instr(replace(tail, '#', '?') || '?', '?') - 1) as path
          from (select *, substr(rest, length(authority) + 1) as tail
                  from (select *, substr(rest, 1, instr(replace(replace(rest, '?', '/'), '#', '/') || '/', '/') - 1)
                                  as authority
                          from (select substr(r.url, instr(r.url, '://') + 3) as rest))))
 where (:hosts is null
        or lower(case when :with_port then authority
                      when authority like '[%' then substr(authority, 2, instr(authority, ']') - 2)
                      else substr(authority, 1, instr(authority || ':', ':') - 1) end)
           in (select value from json_each(:hosts)))
   and (:paths is null or coalesce(nullif(path, ''), '/') in (select value from json_each(:paths)))

-- name: http_runs
-- Only reads, newest first, from a position on. The options of a run that are sealed match no caller and no flow key.
select * from (select {http_run_columns}
  from todoku_http_run r
 where (:ids is null or r.id in (select value from json_each(:ids)))
   and (:urls is null or r.url in (select value from json_each(:urls)))
   and (:prefixes is null
        or exists (select 1 from json_each(:prefixes) p where substr(r.url, 1, length(p.value)) = p.value))
   and ((:hosts is null and :paths is null) or exists (select 1 {http_run_place}))
   and (:caller_ips is null or case when json_valid(r.request) then json_extract(r.request, '$.caller_ip') end
            in (select value from json_each(:caller_ips)))
   and (:flow_keys is null or case when json_valid(r.request) then json_extract(r.request, '$.flow.key') end
            in (select value from json_each(:flow_keys)))
   and (:messages is null or exists (select 1 from todoku_http_run_step s
                                      where s.run_id = r.id
                                        and s.message_id in (select value from json_each(:messages))))
   and (:labels is null or exists (select 1 from json_each(r.labels) l
                                    where l.value in (select value from json_each(:labels))))
   and (:since is null or r.created_at >= :since) and (:until is null or r.created_at < :until)
   and (:before_at is null or (r.created_at, r.id) < (cast(:before_at as integer), :before_id))
 order by r.created_at desc, r.id desc)
 where :state is null or state = :state limit :most

-- name: create_http_run
-- One row; a second start of the same id changes nothing and returns no row.
insert into todoku_http_run (id, url, request, labels, invoker, created_at, updated_at)
values (:id, :url, :request, :labels, :invoker, :now, :now)
    on conflict (id) do nothing
returning created_at / 1e6

-- name: http_run_step_message
-- Only reads, by a unique key, under the lock of the run: no step is added meanwhile.
select message_id from todoku_http_run_step where run_id = :run and step_key = :key

-- name: add_http_run_step
-- Under the lock of the run, so positions have no gaps; a second result for a key is refused by its unique index.
update todoku_http_run set steps = steps + 1, bytes = bytes + length(:body), updated_at = :now where id = :run;
insert into todoku_http_run_step (run_id, position, step_key, message_id, call_type, name, type, body, created_at)
select :run, steps - 1, :key, :message, :call_type, :name, :type, :body, :now from todoku_http_run where id = :run

-- name: set_http_run_request
-- Under the lock of the run: its next calls have the new options.
update todoku_http_run set request = :request, updated_at = :now where id = :run

-- name: replace_http_call
-- Under the lock of the run: a call that is a dead letter is made by another message. Its old message has no step then,
-- and is dropped should it be sent nevertheless. The second of two that do this at once finds no row.
update todoku_http_run_step set message_id = :new where run_id = :run and message_id = :old and call_type = 'step'
returning step_key

-- name: http_run_steps
-- Only reads. What steps contain is never changed while their run is there. Up to the step of a message; null: all.
select position, step_key, message_id, call_type, name, type, body, created_at / 1e6 from todoku_http_run_step
 where run_id = :run
   and (:message is null or position <= (
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
delete from todoku_http_waiter where run_id = :id;
delete from todoku_http_event where run_id = :id;
delete from todoku_http_webhook where run_id = :id;
update todoku_http_run set state = :state, result = :result, ended_at = :now, updated_at = :now
 where id = :id and state = 'started'
returning id

-- name: http_waiters
-- Only reads. Of an event, in one run or in all.
select run_id, step_key, event_id, step, message_id, deadline / 1e6 from todoku_http_waiter
 where event_id = :event and (:run is null or run_id = :run)
 order by run_id, step_key

-- name: http_waiter
-- Only reads, by the primary key, under the lock of the run.
select message_id from todoku_http_waiter where run_id = :run and step_key = :key

-- name: http_waiter_with
-- Only reads: whoever takes it then looks again, under the lock of the run.
select run_id, step_key, event_id, step, message_id, deadline / 1e6 from todoku_http_waiter
 where run_id = :run and message_id = :message

-- name: add_http_waiter
-- Under the lock of the run: no event for it comes meanwhile.
insert into todoku_http_waiter (run_id, step_key, event_id, step, message_id, deadline, created_at)
values (:run, :key, :event, :step, :message, :now + cast(:timeout * 1000000 as integer), :now)

-- name: take_http_waiter
-- Whoever removes the row continues the run: an event, or the end of the time to wait.
delete from todoku_http_waiter where run_id = :run and message_id = :message
returning step_key

-- name: keep_http_event
-- Under the lock of the run, which does not wait for it yet.
insert into todoku_http_event (run_id, event_id, data, created_at) values (:run, :event, :data, :now)

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
insert into todoku_http_webhook (digest, run_id, origin, created_at) values (:digest, :run, :origin, :now)

-- name: http_webhook
-- Only reads, by the primary key. The transaction that stores a request looks again, under the lock of the run.
select origin from todoku_http_webhook where digest = :digest and run_id = :run

-- name: hasten_http_call
-- Only a call that waits; one that a worker has taken reads the steps of its run anyway. The epoch rises (I4).
update todoku_delivery set next_run_at = :now, epoch = epoch + 1, updated_at = :now
 where status = 'pending' and message_seq = (select seq from todoku_message where id = :message)
returning id

-- name: old_http_runs
-- A fragment: ended long ago, or abandoned: nothing of it waits, runs or is a dead letter.
select r.id from todoku_http_run r
 where r.updated_at < :now - cast(:ttl * 1000000 as integer)
   and (r.state <> 'started' or (
        not exists (select 1 from todoku_http_waiter w where w.run_id = r.id)
        and not exists (select 1 from todoku_http_run_step s
                          join todoku_message m on m.id = s.message_id
                          join todoku_delivery d on d.message_seq = m.seq
                         where s.run_id = r.id)))
 order by r.updated_at, r.id limit :most

-- name: prune_http_runs
-- One writer: the same runs in all statements, with their steps, events and webhooks.
delete from todoku_http_run_step where run_id in ({old_http_runs});
delete from todoku_http_event where run_id in (select id from ({old_http_runs}));
delete from todoku_http_webhook where run_id in (select id from ({old_http_runs}));
delete from todoku_http_run where id in ({old_http_runs})
returning 1
