-- Listing and filtering deliveries.

-- name: delivery_columns
-- A fragment: the fields of a Delivery, of one that has not succeeded.
d.id, m.id, m.topic, m.key, d.destination, d.queue, d.lane, d.priority, d.status, d.attempts,
       d.max_attempts, d.lost, d.snoozes, d.replay_count, d.epoch, d.worker_id, d.cancel_requested,
       date_part('epoch', d.next_run_at), date_part('epoch', m.created_at), date_part('epoch', d.updated_at), d.reason, d.error,
       date_part('epoch', d.claimed_at), d.fingerprint, null::integer

-- name: finished_columns
-- A fragment: the fields of a Delivery, of one that succeeded.
h.delivery_id, m.id, m.topic, m.key, h.destination, h.queue, null::bigint, 0, 'succeeded', h.attempts,
       null, 0, 0, h.replay_count, h.epoch, h.worker_id, false,
       date_part('epoch', h.finished_at), date_part('epoch', m.created_at), date_part('epoch', h.finished_at), null::text, null::text, null::float8, null::text,
       h.run_ms

-- name: request_matching
-- A fragment: the filter by fields of the HTTP request that a message carries in a header, which is read only if one of
-- them is set. Authority and path are cut out of the URL as urlsplit does.
(not :by_request::boolean or exists (
    select
      from (select (m.headers ->> 'todoku-http')::json as request) r
     cross join lateral (select request ->> 'url' as url) u
     cross join lateral (
        select substring(url from '^[^:]*://([^/?#]*)') as authority,
               coalesce(nullif(substring(url from '^[^:]*://[^/?#]*([^?#]*)'), ''), '/') as path) p
     where request is not null
       and (:urls::text[] is null or url = any (:urls::text[]))
       and (:hosts::text[] is null
            or lower(case when :with_port::boolean then authority
                          when authority like '[%' then substring(authority from '^\[([^]]*)')
                          else split_part(authority, ':', 1) end) = any (:hosts::text[]))
       and (:paths::text[] is null or path = any (:paths::text[]))
       and (:labels::text[] is null or exists (
                select from json_array_elements_text(request -> 'labels') l(label) where label = any (:labels::text[])))
       and (:request_queues::text[] is null or request ->> 'queue' = any (:request_queues::text[]))
       and (:url_groups::text[] is null or request ->> 'group' = any (:url_groups::text[]))
       and (:schedules::text[] is null or request ->> 'schedule' = any (:schedules::text[]))
       and (:caller_ips::text[] is null or request ->> 'caller_ip' = any (:caller_ips::text[]))
       and (:flow_keys::text[] is null or request -> 'flow' ->> 'key' = any (:flow_keys::text[]))
       and (:run_ids::text[] is null or request -> 'run' ->> 'id' = any (:run_ids::text[]))
       and (:run_parts::text[] is null
            or (request -> 'run' is not null
                and coalesce(request -> 'run' ->> 'part', 'step') = any (:run_parts::text[])))
       and (:run_starts::bigint[] is null
            or (request -> 'run' ->> 'created_at')::bigint = any (:run_starts::bigint[]))
       and (:sources::text[] is null or request ->> 'source' = any (:sources::text[]))))

-- name: labelled
-- A fragment: the filter by a label of the message, which is read only if the filter is set.
(:label::text is null or exists (
        select from json_array_elements_text(coalesce(m.labels, '[]')) l(label) where l.label = :label))

-- name: matching
-- A fragment: the filter of find, replay, cancel and purge. A filter that is null matches everything.
(:ids::bigint[] is null or d.id = any (:ids::bigint[]))
   and (:message_id::uuid is null or m.id = :message_id::uuid)
   and (:status::text is null or d.status = :status)
   and (:topic::text is null or m.topic = :topic)
   and (:destination::text is null or d.destination = :destination)
   and (:queue::text is null or d.queue = :queue)
   and (:reason::text is null or d.reason = :reason)
   and (:fingerprint::text is null or d.fingerprint = :fingerprint
        or (:fingerprint::text = '' and d.fingerprint is null))
   and (:key::text is null or m.key = :key)
   and {labelled}
   and (:since::timestamptz is null or d.updated_at >= :since)
   and (:until::timestamptz is null or d.updated_at < :until)
   and (not :due::boolean or (d.status in ('pending', 'failed') and d.next_run_at <= todoku_now()))
   and (:message_ids::text[] is null or m.id = any (:message_ids::text[]::uuid[]))
   and (:published_since::timestamptz is null or m.created_at >= :published_since)
   and (:published_until::timestamptz is null or m.created_at < :published_until)
   and (:response_statuses::integer[] is null
        or coalesce((select (a.response ->> 'status')::integer from todoku_attempt a where a.delivery_id = d.id
                 order by a.epoch desc limit 1), 0)
           = any (:response_statuses::integer[]))
   and {request_matching}

-- name: find
-- Only reads. By id downwards from the cursor, so every page costs the same.
select {delivery_columns}
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where {matching} and (:before::bigint is null or d.id < :before)
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
  from (select 1 from todoku_delivery
         where status = 'aborted' and (:reason::text is null or reason = :reason)
           and (:destination::text is null or destination = :destination)
           and (:fingerprint::text is null or fingerprint = :fingerprint
                or (:fingerprint::text = '' and fingerprint is null))
           and (:since::timestamptz is null or updated_at >= :since)
           and (:until::timestamptz is null or updated_at < :until)
         order by reason, destination, fingerprint, updated_at limit :most) found

-- name: finished_matching
-- A fragment: the filter as `matching`, of deliveries that succeeded. They have no reason, and are not due.
(:message_id::uuid is null or m.id = :message_id::uuid)
   and (:ids::bigint[] is null or h.delivery_id = any (:ids::bigint[]))
   and (:topic::text is null or m.topic = :topic)
   and (:destination::text is null or h.destination = :destination)
   and (:queue::text is null or h.queue = :queue)
   and (:key::text is null or m.key = :key)
   and {labelled}
   and (:since::timestamptz is null or h.finished_at >= :since)
   and (:until::timestamptz is null or h.finished_at < :until)
   and (:message_ids::text[] is null or m.id = any (:message_ids::text[]::uuid[]))
   and (:published_since::timestamptz is null or m.created_at >= :published_since)
   and (:published_until::timestamptz is null or m.created_at < :published_until)
   and {request_matching}

-- name: find_history
-- Only reads. By (message, delivery) downwards; deliveries of pruned messages are included.
select {finished_columns}, h.message_seq
  from todoku_history h left join todoku_message m on m.seq = h.message_seq
 where {finished_matching}
   and (:before::bigint is null or (h.message_seq, h.delivery_id) < (:before_seq::bigint, :before::bigint))
 order by h.message_seq desc, h.delivery_id desc limit :most

-- name: find_of_message
-- Only reads, in one statement: a delivery that is being settled is in one of the two tables, never in neither. The
-- message is found by its id first, so that both tables are read by its number.
with m as materialized (select * from todoku_message where id = :message_id)
select {delivery_columns}
  from m cross join lateral (select * from todoku_delivery where message_seq = m.seq offset 0) d
 where {matching} and (:before::bigint is null or d.id < :before)
 union all
select {finished_columns}
  from m cross join lateral (select * from todoku_history where message_seq = m.seq offset 0) h
 where {finished_matching} and :reason::text is null and (:before::bigint is null or h.delivery_id < :before)
 order by 1 desc limit :most

-- name: result
-- Only reads.
select result::text from todoku_result where delivery_id = :id

-- name: standing
-- Only reads, in one statement: a delivery that is being settled is in one of the two tables, never in neither. With
-- `offset 0` both are read by the number of the message; without it the planner could walk all of the history.
select d.id, d.status, d.reason, d.error, null, d.destination
  from todoku_message m cross join lateral (select * from todoku_delivery where message_seq = m.seq offset 0) d
 where m.id = :message_id and d.destination = any (:destinations::text[])
 union all
select h.delivery_id, 'succeeded', null, null,
       (select r.result::text from todoku_result r where r.delivery_id = h.delivery_id), h.destination
  from todoku_message m cross join lateral (select * from todoku_history where message_seq = m.seq offset 0) h
 where m.id = :message_id and h.destination = any (:destinations::text[])

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
  from unnest(:ids::text[]::uuid[]) as s(id)
 cross join lateral (
    select seq, id, topic, key, created_at from todoku_message m where m.id = s.id and {http_topics} limit 1) m
 cross join lateral (select * from todoku_delivery where message_seq = m.seq offset 0) d
 union all
select {finished_columns}
  from unnest(:ids::text[]::uuid[]) as s(id)
 cross join lateral (
    select seq, id, topic, key, created_at from todoku_message m where m.id = s.id and {http_topics} limit 1) m
 cross join lateral (select * from todoku_history where message_seq = m.seq offset 0) h
 order by 1

-- name: dead_requests_of
-- Only reads, by the primary key.
select {delivery_columns}
  from unnest(:ids::bigint[]) as s(id)
 cross join lateral (select * from todoku_delivery where id = s.id and status = 'aborted' limit 1) d
 cross join lateral (
    select seq, id, topic, key, created_at from todoku_message m where seq = d.message_seq and {http_topics} limit 1) m
 order by d.updated_at desc, d.id desc

-- name: find_dead_requests
-- Only reads, down the index of dead requests from a position. Reads at most `:look` of them, however few match.
select {delivery_columns}
  from (select * from todoku_delivery
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and coalesce(reason, '') <> 'CANCELLED'
         order by updated_at desc, id desc limit :look) d
 cross join lateral (
    select seq, id, topic, key, headers, labels, created_at from todoku_message where seq = d.message_seq limit 1) m
 where {matching}
 order by d.updated_at desc, d.id desc limit :most

-- name: dead_request_position
-- Only reads: the position where `find_dead_requests` stopped, if there may be more.
select date_part('epoch', updated_at), id
  from (select * from todoku_delivery
         where status = 'aborted' and {is_http} and updated_at >= :since and (updated_at, id) < (:before, :before_id)
           and coalesce(reason, '') <> 'CANCELLED'
         order by updated_at desc, id desc limit 1 offset :skip) d

-- name: find_waiting_requests
-- Only reads, up the ids from a position, as find_dead_requests. The act that follows checks each row again, under its
-- lock.
select {delivery_columns}
  from (select * from todoku_delivery
         where id > :after and status in ('pending', 'failed', 'sending') and not cancel_requested and {is_http}
         order by id limit :look) d
 cross join lateral (
    select seq, id, topic, key, headers, labels, created_at from todoku_message where seq = d.message_seq limit 1) m
 where {matching}
 order by d.id limit :most

-- name: waiting_request_position
-- Only reads: the position where `find_waiting_requests` stopped, if there may be more.
select id
  from (select * from todoku_delivery
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
select min(message_seq), max(message_seq) from todoku_history

-- name: history_from
-- Only reads, one entry of the index of messages.
select message_seq, delivery_id from todoku_history where message_seq >= :seq order by message_seq limit 1
