-- Searching deliveries, finished or not. Only reads; every query looks at a bounded number of rows.

-- name: history_as_delivery
-- A fragment: columns of the history under the names that a delivery has.
delivery_id as id, message_seq, destination, queue, null::bigint as lane, 0 as priority, 'succeeded' as status,
       attempts, null::integer as max_attempts, 0 as lost, 0 as snoozes, replay_count, epoch, worker_id,
       false as cancel_requested, finished_at as next_run_at, null::timestamptz as claimed_at,
       finished_at as updated_at, null::text as reason, null::text as error, null::text as fingerprint
  from todoku_history

-- name: search_matching
-- A fragment: the criteria of a search, of a delivery d and its message m. Criteria that are null match everything. A
-- payload or header is read only if it is asked for.
(:statuses::text[] is null or d.status = any (:statuses::text[]))
   and (not :by_id::boolean or d.id = any (:ids::bigint[]) or m.id = any (:message_ids::text[]::uuid[]))
   and (:topics::text[] is null or '.' || m.topic ~ any (:topic_expressions::text[]))
   and (:queues::text[] is null or d.queue = any (:queues::text[]))
   and (:destinations::text[] is null or d.destination = any (:destinations::text[]))
   and (:hosts::text[] is null or lower(substring(d.destination from '://(.*)')) = any (:hosts::text[])
        or lower(substring(d.destination from '://(\[[^]]*\]|[^:]*)')) = any (:hosts::text[]))
   and (:keys::text[] is null or m.key = any (:keys::text[]))
   and (:reasons::text[] is null or d.reason = any (:reasons::text[]))
   and (:fingerprints::text[] is null or d.fingerprint = any (:fingerprints::text[]))
   and (:errors::text[] is null or not exists (
            select from unnest(:errors::text[]) e(part) where position(lower(e.part) in lower(coalesce(d.error, ''))) = 0))
   and (:workers::text[] is null or d.worker_id = any (:workers::text[]::uuid[]))
   and (:label_groups::integer = 0 or :label_groups::integer = (
            select count(distinct w.place)
              from unnest(:labels::text[], :label_places::integer[]) w(label, place)
             cross join lateral (select from todoku_label l
                                  where l.label = w.label and l.message_seq = d.message_seq offset 0) l))
   and (:payload_paths::text[] is null or (m.payload is not null and not exists (
            select from unnest(:payload_paths::text[], :payload_values::text[]) p(path, value)
             where m.payload #>> p.path::text[] is distinct from p.value)))
   and (:header_names::text[] is null or (m.headers is not null and not exists (
            select from unnest(:header_names::text[], :header_values::text[]) w(name, value)
             where not exists (select from json_each_text(m.headers) h where lower(h.key) = w.name and h.value = w.value)
               and not exists (
                    select from json_each_text((m.headers ->> 'todoku-http')::json -> 'headers') h
                     where lower(h.key) = w.name and h.value = w.value))))

-- name: search_columns
-- A fragment: what is read of the message of a delivery d. Those of a pruned message are null.
{delivery_columns}, d.message_seq

-- name: search_message
-- A fragment: the message of a delivery d, by its number. `limit` keeps the planner from walking all messages instead.
left join lateral (
    select seq, id, topic, key, payload, headers, content_type, created_at
      from todoku_message where seq = d.message_seq limit 1) m on true

-- name: search_span
-- A fragment: from the cursor down to the lower bound.
message_seq <= :before_seq::bigint and message_seq > :low::bigint

-- name: unfinished_walk
-- A fragment: the newest deliveries that have not succeeded, by the index of messages.
select * from todoku_delivery
 where {search_span} and (message_seq, id) < (:before_seq::bigint, :before_id::bigint)
   and (message_seq, id) >= (:stop_seq::bigint, :stop_id::bigint)
 order by message_seq desc, id desc limit :look

-- name: finished_walk
-- A fragment: the newest deliveries that succeeded, by the index of messages.
select * from (select {history_as_delivery}
 where {search_span} and (message_seq, delivery_id) < (:before_seq::bigint, :before_id::bigint)
   and (message_seq, delivery_id) >= (:stop_seq::bigint, :stop_id::bigint)
 order by message_seq desc, delivery_id desc limit :look) h

-- name: dead_walk
-- A fragment: the newest dead letters, by their index.
select * from todoku_delivery
 where status = 'aborted' and id < :before_id::bigint and id >= :stop_id::bigint
   and message_seq > :low::bigint and message_seq <= :high::bigint
 order by id desc limit :look

-- name: fingerprint_walk
-- A fragment: the newest dead letters of a fingerprint, by their index.
select * from todoku_delivery
 where status = 'aborted' and fingerprint is not null and fingerprint = :fingerprint
   and id < :before_id::bigint and id >= :stop_id::bigint
   and message_seq > :low::bigint and message_seq <= :high::bigint
 order by id desc limit :look

-- name: running_walk
-- A fragment: the deliveries in flight, by their small index.
select * from (
    select * from todoku_delivery where status = 'sending' limit :look) s
 where {search_span} and (message_seq, id) < (:before_seq::bigint, :before_id::bigint)
   and (message_seq, id) >= (:stop_seq::bigint, :stop_id::bigint)
 order by message_seq desc, id desc limit :look

-- name: search_unfinished
-- Only reads, from the cursor downwards, at most `:look` rows however few match.
select {search_columns} from ({unfinished_walk}) d {search_message}
 where {search_matching} order by d.message_seq desc, d.id desc limit :most

-- name: search_finished
-- As search_unfinished. Deliveries of pruned messages are included.
select {search_columns} from ({finished_walk}) d {search_message}
 where {search_matching} order by d.message_seq desc, d.id desc limit :most

-- name: search_dead
-- As search_unfinished.
select {search_columns} from ({dead_walk}) d {search_message}
 where {search_matching} order by d.id desc limit :most

-- name: search_fingerprint
-- As search_unfinished.
select {search_columns} from ({fingerprint_walk}) d {search_message}
 where {search_matching} order by d.id desc limit :most

-- name: search_running
-- As search_unfinished.
select {search_columns} from ({running_walk}) d {search_message}
 where {search_matching} order by d.message_seq desc, d.id desc limit :most

-- name: looked_unfinished
-- Only reads: how many rows a search has looked at, and the last of them.
select number, message_seq, id
  from (select message_seq, id, row_number() over () as number
          from ({unfinished_walk}) d) n
 order by number desc limit 1

-- name: looked_finished
-- As looked_unfinished.
select number, message_seq, id
  from (select message_seq, id, row_number() over () as number
          from ({finished_walk}) d) n
 order by number desc limit 1

-- name: looked_dead
-- As looked_unfinished.
select number, message_seq, id
  from (select message_seq, id, row_number() over () as number from ({dead_walk}) d) n
 order by number desc limit 1

-- name: looked_fingerprint
-- As looked_unfinished.
select number, message_seq, id
  from (select message_seq, id, row_number() over () as number from ({fingerprint_walk}) d) n
 order by number desc limit 1

-- name: looked_running
-- As looked_unfinished.
select number, message_seq, id
  from (select message_seq, id, row_number() over () as number
          from ({running_walk}) d) n
 order by number desc limit 1

-- name: is_sealed
-- A fragment: the payload cannot be read here.
m.payload is null and m.content_type like 'application/vnd.todoku.sealed%'

-- name: sealed_unfinished
-- Only reads: how many of the rows that a search has looked at have an encrypted payload.
select count(*) from ({unfinished_walk}) d {search_message} where {is_sealed}

-- name: sealed_finished
-- As sealed_unfinished.
select count(*) from ({finished_walk}) d {search_message} where {is_sealed}

-- name: sealed_dead
-- As sealed_unfinished.
select count(*) from ({dead_walk}) d {search_message} where {is_sealed}

-- name: sealed_fingerprint
-- As sealed_unfinished.
select count(*) from ({fingerprint_walk}) d {search_message} where {is_sealed}

-- name: sealed_running
-- As sealed_unfinished.
select count(*) from ({running_walk}) d {search_message} where {is_sealed}

-- name: search_messages
-- Only reads: the deliveries of some messages, by their numbers, in one statement: a delivery that is being settled is in
-- one of the two tables, never in neither.
select {search_columns}
  from (select u.* from unnest(:seqs::bigint[]) s(seq)
         cross join lateral (
            select id, message_seq, destination, queue, lane, priority::integer, status, attempts, max_attempts, lost,
                   snoozes, replay_count, epoch, worker_id, cancel_requested, next_run_at, claimed_at, updated_at,
                   reason, error, fingerprint
              from todoku_delivery where message_seq = s.seq
            union all
            select * from (select {history_as_delivery} where message_seq = s.seq) h offset 0) u) d {search_message}
 where {search_matching} and (d.message_seq, d.id) < (:before_seq::bigint, :before_id::bigint)
 order by d.message_seq desc, d.id desc limit :most

-- name: seqs_of_ids
-- Only reads: the messages of these deliveries and of these ids, by their indexes. Those that succeeded are found by an
-- index of blocks.
select distinct seq from (
    select message_seq as seq from todoku_delivery where id = any (:ids::bigint[])
    union all
    select message_seq from todoku_history where delivery_id = any (:ids::bigint[])
    union all
    select seq from todoku_message where id = any (:message_ids::text[]::uuid[])) found
 order by seq desc

-- name: seqs_of_label
-- Only reads: the newest messages with a label, by the primary key.
select message_seq from todoku_label where label = :value and {search_span} order by message_seq desc limit :look

-- name: seqs_of_key
-- Only reads: the newest messages with a key, by their index.
select seq from todoku_message
 where key = :value and seq <= :before_seq::bigint and seq > :low::bigint order by seq desc limit :look

-- name: seq_at
-- Only reads, by the primary key: the last message up to a number, and when it was published.
select seq, date_part('epoch', created_at) from todoku_message where seq <= :seq order by seq desc limit 1

-- name: known_words
-- Only reads: which of these words are keys or labels, by their indexes.
select w.word,
       exists (select from todoku_message where key = w.word offset 0),
       exists (select from todoku_label where label = w.word offset 0)
  from unnest(:words::text[]) w(word)

-- name: declared_fields
-- Only reads: which of these prefixes labels begin with, by the primary key.
select w.prefix from unnest(:prefixes::text[]) w(prefix)
 where exists (select from todoku_label l where l.label >= w.prefix and l.label < w.prefix || chr(1114109) offset 0)

-- name: label_names
-- Only reads: label names, each found by one step in the primary key, so the cost depends on how many are returned and not
-- on how many labels there are. The name of a label is what stands before its first colon.
with recursive names as (
    (select label, 1 as place from todoku_label where label >= :prefix order by label limit 1)
    union all
    select n.label, names.place + 1
      from names cross join lateral (
        select label from todoku_label
         where label > split_part(names.label, ':', 1) || case when position(':' in names.label) > 0
                                                               then ':' || chr(1114109) else '' end
         order by label limit 1) n
     where names.place < :most
)
select split_part(label, ':', 1) || case when position(':' in label) > 0 then ':' else '' end
  from names where starts_with(label, :prefix)

-- name: recent_names
-- Only reads: topics, queues, destinations and reasons of the newest rows.
select 'topic', topic from (select topic from todoku_message order by seq desc limit :look) m group by topic
 union all
select 'queue', queue from (select queue from todoku_delivery order by message_seq desc limit :look) d group by queue
 union all
select 'destination', destination
  from (select destination from todoku_delivery order by message_seq desc limit :look) d group by destination
 union all
select 'reason', reason
  from (select reason from todoku_delivery where status = 'aborted' order by id desc limit :look) d
 where reason is not null group by reason
