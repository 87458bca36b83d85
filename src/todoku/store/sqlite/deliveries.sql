-- Listing and filtering deliveries.

-- name: delivery_columns
-- A fragment: the fields of a Delivery, of one that has not succeeded.
d.id, m.id, m.topic, m.key, d.destination, d.queue, d.lane, d.priority, d.status, d.attempts,
       d.max_attempts, d.lost, d.snoozes, d.replay_count, d.epoch, d.worker_id, d.cancel_requested,
       d.next_run_at / 1e6, m.created_at / 1e6, d.updated_at / 1e6, d.reason, d.error,
       d.claimed_at / 1e6, d.fingerprint, null

-- name: finished_columns
-- A fragment: the fields of a Delivery, of one that succeeded.
h.delivery_id, m.id, m.topic, m.key, h.destination, h.queue, null, 0, 'succeeded', h.attempts,
       null, 0, 0, h.replay_count, h.epoch, h.worker_id, 0,
       h.finished_at / 1e6, m.created_at / 1e6, h.finished_at / 1e6, null, null, null, null, h.run_ms

-- name: request_matching
-- A fragment: the filter by fields of the HTTP request that a message carries in a header, which is read only if one of
-- them is set. Authority and path are cut out of the URL as urlsplit does.
(not :by_request or exists (
    select 1
      from (select *, substr(tail, 1, instr(replace(tail, '#', '?') || '?', '?') - 1) as path
              from (select *, substr(rest, length(authority) + 1) as tail
                      from (select *, substr(rest, 1, instr(replace(replace(rest, '?', '/'), '#', '/') || '/', '/') - 1)
                                      as authority
                              from (select *, substr(url, instr(url, '://') + 3) as rest
                                      from (select request, json_extract(request, '$.url') as url
                                              from (select json_extract(m.headers, '$."todoku-http"') as request))))))
     where request is not null
       and (:urls is null or url in (select value from json_each(:urls)))
       and (:hosts is null
            or lower(case when :with_port then authority
                          when authority like '[%' then substr(authority, 2, instr(authority, ']') - 2)
                          else substr(authority, 1, instr(authority || ':', ':') - 1) end)
               in (select value from json_each(:hosts)))
       and (:paths is null or coalesce(nullif(path, ''), '/') in (select value from json_each(:paths)))
       and (:labels is null or exists (
                select 1 from json_each(request, '$.labels') l
                 where l.value in (select value from json_each(:labels))))
       and (:request_queues is null or json_extract(request, '$.queue') in (select value from json_each(:request_queues)))
       and (:url_groups is null or json_extract(request, '$.group') in (select value from json_each(:url_groups)))
       and (:schedules is null or json_extract(request, '$.schedule') in (select value from json_each(:schedules)))
       and (:caller_ips is null or json_extract(request, '$.caller_ip') in (select value from json_each(:caller_ips)))
       and (:flow_keys is null or json_extract(request, '$.flow.key') in (select value from json_each(:flow_keys)))
       and (:run_ids is null or json_extract(request, '$.run.id') in (select value from json_each(:run_ids)))
       and (:run_parts is null
            or (json_extract(request, '$.run.id') is not null
                and coalesce(json_extract(request, '$.run.part'), 'step') in (select value from json_each(:run_parts))))
       and (:run_starts is null
            or json_extract(request, '$.run.created_at') in (select value from json_each(:run_starts)))
       and (:sources is null or json_extract(request, '$.source') in (select value from json_each(:sources)))))

-- name: labelled
-- A fragment: the filter by a label of the message, which is read only if the filter is set.
(:label is null or exists (select 1 from json_each(coalesce(m.labels, '[]')) l where l.value = :label))

-- name: matching
-- A fragment: the filter of find, replay, cancel and purge. A filter that is null matches everything.
(:ids is null or d.id in (select value from json_each(:ids)))
   and (:message_id is null or m.id = :message_id)
   and (:status is null or d.status = :status)
   and (:topic is null or m.topic = :topic)
   and (:destination is null or d.destination = :destination)
   and (:queue is null or d.queue = :queue)
   and (:reason is null or d.reason = :reason)
   and (:fingerprint is null or d.fingerprint = :fingerprint or (:fingerprint = '' and d.fingerprint is null))
   and (:key is null or m.key = :key)
   and {labelled}
   and (:since is null or d.updated_at >= :since)
   and (:until is null or d.updated_at < :until)
   and (not :due or (d.status in ('pending', 'failed') and d.next_run_at <= :now))
   and (:message_ids is null or m.id in (select value from json_each(:message_ids)))
   and (:published_since is null or m.created_at >= :published_since)
   and (:published_until is null or m.created_at < :published_until)
   and (:response_statuses is null
        or coalesce((select json_extract(a.response, '$.status') from todoku_attempt a where a.delivery_id = d.id
                 order by a.epoch desc limit 1), 0)
           in (select value from json_each(:response_statuses)))
   and {request_matching}

-- name: find
-- Only reads. By id downwards from the cursor, so every page costs the same.
select {delivery_columns}
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:before is null or d.id < :before)
 order by d.id desc limit :most

-- name: newest_dead
-- Only reads, by the index of dead letters: the cost does not depend on how many other deliveries there are.
select {delivery_columns}
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where d.status = 'aborted'
 order by d.id desc limit :most

-- name: count_matching
-- Only reads, and stops at :most rows.
select count(*)
  from (select 1 from todoku_delivery d join todoku_message m on m.seq = d.message_seq
         where {matching} order by d.id limit :most) found

-- name: count_dead_matching
-- Only reads, from the index by cause, and stops at :most rows.
select count(*)
  from (select 1 from todoku_delivery indexed by todoku_delivery_cause
         where status = 'aborted' and (:reason is null or reason = :reason)
           and (:destination is null or destination = :destination)
           and (:fingerprint is null or fingerprint = :fingerprint or (:fingerprint = '' and fingerprint is null))
           and (:since is null or updated_at >= :since) and (:until is null or updated_at < :until)
         limit :most)

-- name: finished_matching
-- A fragment: the filter as `matching`, of deliveries that succeeded. They have no reason, and are not due.
(:message_id is null or m.id = :message_id)
   and (:ids is null or h.delivery_id in (select value from json_each(:ids)))
   and (:topic is null or m.topic = :topic)
   and (:destination is null or h.destination = :destination)
   and (:queue is null or h.queue = :queue)
   and (:key is null or m.key = :key)
   and {labelled}
   and (:since is null or h.finished_at >= :since)
   and (:until is null or h.finished_at < :until)
   and (:message_ids is null or m.id in (select value from json_each(:message_ids)))
   and (:published_since is null or m.created_at >= :published_since)
   and (:published_until is null or m.created_at < :published_until)
   and {request_matching}

-- name: find_history
-- Only reads. By (message, delivery) downwards; deliveries of pruned messages are included.
select {finished_columns}, h.message_seq
  from todoku_history h left join todoku_message m on m.seq = h.message_seq
 where {finished_matching}
   and (:before is null or (h.message_seq, h.delivery_id) < (:before_seq, :before))
 order by h.message_seq desc, h.delivery_id desc limit :most

-- name: find_of_message
-- Only reads, in one statement: a delivery that is being settled is in one of the two tables, never in neither. The
-- message is found by its id first, so that both tables are read by its number.
with m as materialized (select * from todoku_message where id = :message_id)
select {delivery_columns}
  from m join todoku_delivery d on d.message_seq = m.seq
 where {matching} and (:before is null or d.id < :before)
 union all
select {finished_columns}
  from m join todoku_history h on h.message_seq = m.seq
 where {finished_matching} and :reason is null and (:before is null or h.delivery_id < :before)
 order by 1 desc limit :most

-- name: result
-- Only reads.
select result from todoku_result where delivery_id = :id

-- name: standing
-- Only reads, in one statement: a delivery that is being settled is in one of the two tables, never in neither.
select d.id, d.status, d.reason, d.error, null, d.destination
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id = :message_id and d.destination in (select value from json_each(:destinations))
 union all
select h.delivery_id, 'succeeded', null, null,
       (select r.result from todoku_result r where r.delivery_id = h.delivery_id), h.destination
  from todoku_message m join todoku_history h on h.message_seq = m.seq
 where m.id = :message_id and h.destination in (select value from json_each(:destinations))

-- name: is_http
-- A fragment, identical to the condition of the indexes of requests: the delivery is one of a request.
substr(queue || ':', 1, 5) in ('http:', 'flow:')

-- name: http_topics
-- A fragment, identical to the condition of the index of requests: the message is a request.
m.topic in ('http.request', 'http.callback')

-- name: requests_of
-- Only reads, by the unique index of ids, in one statement: a delivery that is being settled is in one of the two
-- tables, never in neither.
select {delivery_columns}
  from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.id in (select value from json_each(:ids)) and {http_topics}
 union all
select {finished_columns}
  from todoku_message m join todoku_history h on h.message_seq = m.seq
 where m.id in (select value from json_each(:ids)) and {http_topics}
 order by 1

-- name: dead_requests_of
-- Only reads, by the primary key.
select {delivery_columns}
  from todoku_delivery d cross join todoku_message m on m.seq = d.message_seq
 where d.id in (select value from json_each(:ids)) and d.status = 'aborted' and {http_topics}
 order by d.updated_at desc, d.id desc

-- name: find_dead_requests
-- Only reads, down the index of dead requests from a position. Reads at most `:look` of them, however few match.
select {delivery_columns}
  from (select * from todoku_delivery indexed by todoku_delivery_died
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and coalesce(reason, '') <> 'CANCELLED'
         order by updated_at desc, id desc limit :look) d
 cross join todoku_message m on m.seq = d.message_seq
 where {matching}
 order by d.updated_at desc, d.id desc limit :most

-- name: dead_request_position
-- Only reads: the position where `find_dead_requests` stopped, if there may be more.
select updated_at / 1e6, id
  from (select * from todoku_delivery indexed by todoku_delivery_died
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and coalesce(reason, '') <> 'CANCELLED'
         order by updated_at desc, id desc limit 1 offset :skip) d

-- name: find_waiting_requests
-- Only reads, up the ids from a position, as find_dead_requests. The act that follows checks each row again, under its
-- lock.
select {delivery_columns}
  from (select * from todoku_delivery not indexed
         where id > :after and status in ('pending', 'failed', 'sending') and not cancel_requested and {is_http}
         order by id limit :look) d
 cross join todoku_message m on m.seq = d.message_seq
 where {matching}
 order by d.id limit :most

-- name: waiting_request_position
-- Only reads: the position where `find_waiting_requests` stopped, if there may be more.
select id
  from (select * from todoku_delivery not indexed
         where id > :after and status in ('pending', 'failed', 'sending') and not cancel_requested and {is_http}
         order by id limit 1 offset :skip) d

-- name: delivery
-- Only reads, by the primary key.
select {delivery_columns}
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where d.id = :id

-- name: finished_delivery
-- Only reads, by the index of messages.
select {finished_columns}
  from todoku_history h left join todoku_message m on m.seq = h.message_seq
 where h.message_seq between :low and :high and h.delivery_id = :id limit 1

-- name: known_message
-- Only reads, by the index of attempts and the primary key of results: the message of a delivery that has one of both.
select message_seq from todoku_attempt where delivery_id = :id and message_seq is not null
 union all
select message_seq from todoku_result where delivery_id = :id
 limit 1

-- name: history_ends
-- Only reads, both ends of the index of messages.
select (select min(message_seq) from todoku_history), (select max(message_seq) from todoku_history)

-- name: history_from
-- Only reads, one entry of the index of messages.
select message_seq, delivery_id from todoku_history where message_seq >= :seq order by message_seq limit 1
