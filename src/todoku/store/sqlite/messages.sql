-- Messages.

-- name: message
-- Only reads.
select seq, id, topic, type, key, payload, payload_bytes, content_type, headers, labels, created_at / 1e6
  from todoku_message where id = :message_id

-- name: audits
-- Only reads.
select at / 1e6, by, action, target, why from todoku_audit
 where target in (select value from json_each(:targets)) order by id

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
