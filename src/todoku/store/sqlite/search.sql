-- Searching deliveries, finished or not. Only reads; every query looks at a bounded number of rows.

-- name: history_as_delivery
-- A fragment: columns of the history under the names that a delivery has.
delivery_id as id, message_seq, destination, queue, null as lane, 0 as priority, 'succeeded' as status,
       attempts, null as max_attempts, 0 as lost, 0 as snoozes, replay_count, epoch, worker_id,
       0 as cancel_requested, finished_at as next_run_at, null as claimed_at,
       finished_at as updated_at, null as reason, null as error, null as fingerprint
  from todoku_history

-- name: search_matching
-- A fragment: the criteria of a search, of a delivery d and its message m. Criteria that are null match everything. A
-- payload or header is read only if it is asked for. A pattern of topics has as many dots as its topics, unless it ends
-- with two stars.
(:statuses is null or d.status in (select value from json_each(:statuses)))
   and (not :by_id or d.id in (select value from json_each(:ids)) or m.id in (select value from json_each(:message_ids)))
   and (:topics is null or exists (
            select 1 from json_each(:topics) p
             where case when p.value = '**' then 1
                        when p.value like '%.**' then m.topic || '.' glob substr(p.value, 1, length(p.value) - 1)
                        else m.topic glob p.value and length(m.topic) - length(replace(m.topic, '.', ''))
                                                    = length(p.value) - length(replace(p.value, '.', '')) end))
   and (:queues is null or d.queue in (select value from json_each(:queues)))
   and (:destinations is null or d.destination in (select value from json_each(:destinations)))
   and (:hosts is null or exists (
            select 1 from json_each(:hosts) h
             where instr(d.destination, '://') > 0
               and (lower(substr(d.destination, instr(d.destination, '://') + 3)) = h.value
                    or lower(substr(d.destination, instr(d.destination, '://') + 3)) glob
                       replace(h.value, '[', '[[]') || ':[0-9]*')))
   and (:keys is null or m.key in (select value from json_each(:keys)))
   and (:reasons is null or d.reason in (select value from json_each(:reasons)))
   and (:fingerprints is null or d.fingerprint in (select value from json_each(:fingerprints)))
   and (:errors is null or not exists (
            select 1 from json_each(:errors) e where instr(lower(coalesce(d.error, '')), lower(e.value)) = 0))
   and (:workers is null or d.worker_id in (select value from json_each(:workers)))
   and (:label_groups = 0 or :label_groups = (
            select count(distinct p.value)
              from json_each(:labels) w join json_each(:label_places) p on p.key = w.key
             where exists (select 1 from todoku_label l where l.label = w.value and l.message_seq = d.message_seq)))
   and (:payload_terms is null or (m.payload is not null and not exists (
            select 1 from json_each(:payload_terms) p
             where case json_type(m.payload, json_extract(p.value, '$.path'))
                        when 'true' then 'true' when 'false' then 'false'
                        else cast(json_extract(m.payload, json_extract(p.value, '$.path')) as text) end
                   is not json_extract(p.value, '$.value'))))
   and (:header_terms is null or (m.headers is not null and not exists (
            select 1 from json_each(:header_terms) w
             where not exists (select 1 from json_each(m.headers) h
                                where lower(h.key) = json_extract(w.value, '$.name')
                                  and h.value = json_extract(w.value, '$.value'))
               and not exists (
                    select 1 from json_each(json_extract(json_extract(m.headers, '$."todoku-http"'), '$.headers')) h
                     where lower(h.key) = json_extract(w.value, '$.name')
                       and h.value = json_extract(w.value, '$.value')))))

-- name: search_columns
-- A fragment: what is read of the message of a delivery d. Those of a pruned message are null.
{delivery_columns}, d.message_seq

-- name: search_message
-- A fragment: the message of a delivery d, by its number.
left join todoku_message m on m.seq = d.message_seq

-- name: search_span
-- A fragment: from the cursor down to the lower bound.
message_seq <= :before_seq and message_seq > :low

-- name: unfinished_walk
-- A fragment: the newest deliveries that have not succeeded, by the index of messages.
select * from todoku_delivery indexed by todoku_delivery_message
 where {search_span} and (message_seq, id) < (:before_seq, :before_id) and (message_seq, id) >= (:stop_seq, :stop_id)
 order by message_seq desc, id desc limit :look

-- name: finished_walk
-- A fragment: the newest deliveries that succeeded, by the index of messages.
select * from (select {history_as_delivery} indexed by todoku_history_message
 where {search_span} and (message_seq, delivery_id) < (:before_seq, :before_id)
   and (message_seq, delivery_id) >= (:stop_seq, :stop_id)
 order by message_seq desc, delivery_id desc limit :look)

-- name: dead_walk
-- A fragment: the newest dead letters, by their index.
select * from todoku_delivery indexed by todoku_delivery_dead
 where status = 'aborted' and id < :before_id and id >= :stop_id and message_seq > :low and message_seq <= :high
 order by id desc limit :look

-- name: fingerprint_walk
-- A fragment: the newest dead letters of a fingerprint, by their index.
select * from todoku_delivery indexed by todoku_delivery_fingerprint
 where status = 'aborted' and fingerprint is not null and fingerprint = :fingerprint
   and id < :before_id and id >= :stop_id and message_seq > :low and message_seq <= :high
 order by id desc limit :look

-- name: running_walk
-- A fragment: the deliveries in flight, by their small index.
select * from (
    select * from todoku_delivery indexed by todoku_delivery_owner where status = 'sending' limit :look)
 where {search_span} and (message_seq, id) < (:before_seq, :before_id) and (message_seq, id) >= (:stop_seq, :stop_id)
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
m.payload is null and m.content_type glob 'application/vnd.todoku.sealed*'

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
  from (select id, message_seq, destination, queue, lane, priority, status, attempts, max_attempts, lost, snoozes,
               replay_count, epoch, worker_id, cancel_requested, next_run_at, claimed_at, updated_at, reason, error,
               fingerprint
          from todoku_delivery indexed by todoku_delivery_message
         where message_seq in (select value from json_each(:seqs))
        union all
        select * from (select {history_as_delivery} indexed by todoku_history_message
         where message_seq in (select value from json_each(:seqs)))) d {search_message}
 where {search_matching} and (d.message_seq, d.id) < (:before_seq, :before_id)
 order by d.message_seq desc, d.id desc limit :most

-- name: seqs_of_ids
-- Only reads: the messages of these deliveries and of these ids. Deliveries that succeeded have no index by number: the
-- narrow table is read, which a million rows allow.
select distinct seq from (
    select message_seq as seq from todoku_delivery where id in (select value from json_each(:ids))
    union all
    select message_seq from todoku_history not indexed where delivery_id in (select value from json_each(:ids))
    union all
    select seq from todoku_message where id in (select value from json_each(:message_ids)))
 order by seq desc

-- name: seqs_of_label
-- Only reads: the newest messages with a label, by the primary key.
select message_seq from todoku_label where label = :value and {search_span} order by message_seq desc limit :look

-- name: seqs_of_key
-- Only reads: the newest messages with a key, by their index.
select seq from todoku_message indexed by todoku_message_key
 where key is not null and key = :value and seq <= :before_seq and seq > :low order by seq desc limit :look

-- name: seq_at
-- Only reads, by the primary key: the last message up to a number, and when it was published.
select seq, created_at / 1e6 from todoku_message where seq <= :seq order by seq desc limit 1

-- name: known_words
-- Only reads: which of these words are keys or labels, by their indexes.
select w.value,
       exists (select 1 from todoku_message where key = w.value),
       exists (select 1 from todoku_label where label = w.value)
  from json_each(:words) w

-- name: declared_fields
-- Only reads: which of these prefixes labels begin with, by the primary key.
select w.value from json_each(:prefixes) w
 where exists (select 1 from todoku_label l where l.label >= w.value and l.label < w.value || char(1114109))

-- name: label_names
-- Only reads: label names, each found by one step in the primary key, so the cost depends on how many are returned and not
-- on how many labels there are. The name of a label is what stands before its first colon.
with recursive names(label, place) as (
    select (select label from todoku_label where label >= :prefix order by label limit 1), 1
    union all
    select (select l.label from todoku_label l
             where l.label > case when instr(names.label, ':') > 0
                                  then substr(names.label, 1, instr(names.label, ':')) || char(1114109)
                                  else names.label end
             order by l.label limit 1), place + 1
      from names where place < :most and label is not null
)
select case when instr(label, ':') > 0 then substr(label, 1, instr(label, ':')) else label end
  from names where label is not null and substr(label, 1, length(:prefix)) = :prefix

-- name: recent_names
-- Only reads: topics, queues, destinations and reasons of the newest rows.
select 'topic', topic from (select topic from todoku_message order by seq desc limit :look) group by topic
 union all
select 'queue', queue from (select queue from todoku_delivery order by message_seq desc limit :look) group by queue
 union all
select 'destination', destination
  from (select destination from todoku_delivery order by message_seq desc limit :look) group by destination
 union all
select 'reason', reason
  from (select reason from todoku_delivery indexed by todoku_delivery_dead
         where status = 'aborted' order by id desc limit :look)
 where reason is not null group by reason
