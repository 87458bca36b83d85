-- Data keys.

-- name: data_keys
-- Only reads, by the index of ids: a key was stored before, or with, the message that needs it.
select id, day, master_key_id, wrapped from todoku_data_key where id = any (:ids::text[]::uuid[]) order by seq

-- name: data_key_days
-- Only reads; there are few: one a process and day.
select day, master_key_id, count(distinct id), date_part('epoch', min(created_at))
  from todoku_data_key group by day, master_key_id order by day, master_key_id

-- name: stale_data_keys
-- Locked in the order of their numbers: of two who rotate, the second finds the row changed and passes it over.
select seq, id, day, master_key_id, wrapped from todoku_data_key
 where seq > :after::bigint and master_key_id <> :current order by seq limit :most for update

-- name: rewrap_data_key
-- Locked and read by stale_data_keys in this transaction.
update todoku_data_key set master_key_id = :master_key_id, wrapped = :wrapped where seq = :seq

-- name: count_data_keys
-- Only reads.
select count(distinct id) from todoku_data_key where day >= :since and day < :before

-- name: stranded
-- Only reads: what is not succeeded and sealed by a key of these days, whose id is in the sealed bytes; of a request
-- with secret headers in those, too, in front.
select count(*) filter (where d.status <> 'aborted'), count(*) filter (where d.status = 'aborted')
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where (m.content_type like :kind
        and exists (select from todoku_data_key k
                     where k.id = encode(substring(m.payload_bytes from 2 for 16), 'hex')::uuid
                       and k.day >= :since and k.day < :before))
    or (m.headers::text like :secrets
        and exists (select from todoku_data_key k
                     where k.id::text = substr(m.headers ->> 'todoku-secrets', 1, 36)
                       and k.day >= :since and k.day < :before))

-- name: blank_data_keys
-- Only what the next statement deletes.
update todoku_data_key set wrapped = '' where day >= :since and day < :before

-- name: delete_data_keys
-- Days that are over: no process seals with their keys any more, and what they sealed cannot be read again by anybody.
delete from todoku_data_key where day >= :since and day < :before returning id, day

-- name: newest_messages
-- Only reads, so many rows from the end; a payload that is sealed, not JSON or large stays where it is.
select topic, case when octet_length(payload::text) <= :largest then payload::text end, content_type
  from todoku_message order by seq desc limit :most
