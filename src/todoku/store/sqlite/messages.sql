-- Messages.

-- name: message
-- Only reads.
select seq, id, topic, type, key, payload, payload_bytes, content_type, headers, labels, created_at / 1e6,
       key_hash
  from todoku_message where id = :message_id

-- name: audits
-- Only reads.
select at / 1e6, by, action, target, why from todoku_audit
 where target in (select value from json_each(:targets)) order by id

-- name: last_message
-- Only reads, the end of the primary key.
select coalesce(max(seq), 0) from todoku_message

-- name: find_repeatable
-- Only reads. Succeeded deliveries that match, with their messages, in the order in which they were published.
select {finished_columns}, m.seq, m.id, m.topic, m.type, m.key, m.payload, m.payload_bytes, m.content_type,
       m.headers, m.labels, m.created_at / 1e6, m.key_hash
  from todoku_history h join todoku_message m on m.seq = h.message_seq
 where {finished_matching} and (h.message_seq, h.delivery_id) > (:after_seq, :after_id)
   and h.message_seq <= :last_seq
 order by h.message_seq, h.delivery_id limit :most

-- name: message_headers
-- Only reads, by the unique index of ids.
select id, headers from todoku_message where id in (select value from json_each(:ids)) and headers is not null

-- name: previews
-- Only reads; a payload too large to show is not returned.
select id, case when length(cast(payload as blob)) <= :largest then payload end,
       coalesce(length(cast(payload as blob)), length(payload_bytes)), content_type
  from todoku_message where id in (select value from json_each(:ids))

-- name: requests
-- Only reads, by the unique index of ids.
select m.id, m.topic, m.content_type, coalesce(m.payload_bytes, cast(m.payload as blob)), m.headers,
       m.created_at / 1e6
  from todoku_message m
 where m.id in (select value from json_each(:ids)) and {http_topics}

-- name: find_followers
-- Only reads, up the unique index of ids: looks at no more than `:look` messages, however few of them match.
select m.id, m.topic, m.key, m.created_at / 1e6, m.headers, m.labels
  from (select * from todoku_message where id > :since and id < :until order by id limit :look) m
 where m.id <> :message_id
   and ((m.topic in ('todoku.succeeded', 'todoku.aborted') and json_extract(m.payload, '$.message_id') = :message_id)
        or exists (select 1 from json_each(:needles) n
                    where instr(coalesce(m.headers, '') || coalesce(m.labels, ''), n.value) > 0))
 order by m.id limit :most

-- name: followers_beyond
-- Only reads, up the unique index of ids: whether there are more messages than `find_followers` looks at.
select 1 from (select id from todoku_message where id > :since and id < :until order by id limit 1 offset :look) m

-- name: labelled_messages
-- Only reads, by the index of labels, then by the primary key.
select m.id, m.topic, m.key, m.created_at / 1e6, m.headers, m.labels
  from todoku_label l cross join todoku_message m on m.seq = l.message_seq
 where l.label in (select value from json_each(:labels)) order by l.message_seq limit :most
