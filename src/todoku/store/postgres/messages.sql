-- Messages.

-- name: message
-- Only reads.
select seq, id, topic, type, key, payload::text, payload_bytes, content_type, headers::text, labels::text,
       date_part('epoch', created_at), key_hash
  from todoku_message where id = :message_id

-- name: audits
-- Only reads.
select date_part('epoch', at), by, action, target, why from todoku_audit
 where target = any (:targets::text[]) order by id

-- name: last_message
-- Only reads, the end of the primary key.
select coalesce(max(seq), 0) from todoku_message

-- name: find_repeatable
-- Only reads. Succeeded deliveries that match, with their messages, in the order in which they were published.
select {finished_columns}, m.seq, m.id, m.topic, m.type, m.key, m.payload::text, m.payload_bytes, m.content_type,
       m.headers::text, m.labels::text, date_part('epoch', m.created_at), m.key_hash
  from todoku_history h cross join lateral (select * from todoku_message where seq = h.message_seq limit 1) m
 where {finished_matching} and (h.message_seq, h.delivery_id) > (:after_seq::bigint, :after_id::bigint)
   and h.message_seq <= :last_seq
 order by h.message_seq, h.delivery_id limit :most

-- name: message_headers
-- Only reads, by the unique index of ids.
select id, headers::text from todoku_message where id = any (:ids::text[]::uuid[]) and headers is not null

-- name: previews
-- Only reads; a payload too large to show is not returned.
select id, case when octet_length(payload::text) <= :largest then payload::text end,
       coalesce(octet_length(payload::text), octet_length(payload_bytes)), content_type
  from todoku_message where id = any (:ids::text[]::uuid[])

-- name: requests
-- Only reads, by the unique index of ids.
select m.id, m.topic, m.content_type, coalesce(m.payload_bytes, convert_to(m.payload::text, 'UTF8')), m.headers::text,
       date_part('epoch', m.created_at)
  from todoku_message m
 where m.id = any (:ids::text[]::uuid[]) and {http_topics}

-- name: find_followers
-- Only reads, up the unique index of ids: looks at no more than `:look` messages, however few of them match.
select m.id, m.topic, m.key, date_part('epoch', m.created_at), m.headers::text, m.labels::text
  from (select * from todoku_message where id > :since::uuid and id < :until::uuid order by id limit :look) m
 where m.id <> :message_id::uuid
   and ((m.topic in ('todoku.succeeded', 'todoku.aborted') and m.payload ->> 'message_id' = (:message_id::uuid)::text)
        or exists (select 1 from unnest(:needles::text[]) n(value)
                    where strpos(concat(m.headers::text, m.labels::text), n.value) > 0))
 order by m.id limit :most

-- name: followers_beyond
-- Only reads, up the unique index of ids: whether there are more messages than `find_followers` looks at.
select 1
  from (select id from todoku_message where id > :since::uuid and id < :until::uuid order by id limit 1 offset :look) m

-- name: labelled_messages
-- Only reads, by the index of labels, then by the primary key.
select m.id, m.topic, m.key, date_part('epoch', m.created_at), m.headers::text, m.labels::text
  from (select message_seq from todoku_label where label = any (:labels::text[]) order by message_seq limit :most) l
 cross join lateral (select * from todoku_message where seq = l.message_seq limit 1) m
 order by l.message_seq
