-- Data keys.

-- name: data_keys
-- Only reads, by the index of ids: a key is stored before, or together with, the message that needs it.
select id, day, master_key_id, wrapped from todoku_data_key where id = any (:ids::text[]::uuid[]) order by seq

-- name: data_key_days
-- Only reads; keys are few: one for each process and day.
select day, master_key_id, count(distinct id), date_part('epoch', min(created_at))
  from todoku_data_key group by day, master_key_id order by day, master_key_id

-- name: stale_data_keys
-- Locked in the order of their numbers: of two concurrent rotations, the second finds the row changed and skips it.
select seq, id, day, master_key_id, wrapped from todoku_data_key
 where seq > :after::bigint and master_key_id <> :current order by seq limit :most for update

-- name: rewrap_data_key
-- Locked and read by stale_data_keys in this transaction.
update todoku_data_key set master_key_id = :master_key_id, wrapped = :wrapped where seq = :seq

-- name: count_data_keys
-- Only reads.
select count(distinct id) from todoku_data_key where day >= :since and day < :before

-- name: stranded
-- Only reads: deliveries that have not succeeded and are encrypted by a key of these days. The id of the key is in the
-- encrypted bytes, and for a request with secret headers also at the start of those.
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

-- name: stranded_runs
-- Only reads: steps and signals of encrypted runs, which are sealed with the data key of their message. A step that keeps
-- nothing, such as a sleep, stays readable; so do signals of before they were sealed.
with run as materialized (
    select m.seq from (
        select message_seq from todoku_step group by message_seq
        union select message_seq from todoku_signal group by message_seq) s
     cross join lateral (select seq, content_type, payload_bytes from todoku_message where seq = s.message_seq limit 1) m
     where m.content_type like :kind
       and exists (select from todoku_data_key k
                    where k.id = encode(substring(m.payload_bytes from 2 for 16), 'hex')::uuid
                      and k.day >= :since and k.day < :before)
)
select (select count(*) from todoku_step s join run on run.seq = s.message_seq
         where '"todoku.sealed":' in (substr(s.arguments, 2, 16), substr(s.result, 2, 16), substr(s.undo, 2, 16))),
       (select count(*) from todoku_signal s join run on run.seq = s.message_seq
         where substr(s.payload, 2, 16) = '"todoku.sealed":')

-- name: blank_data_keys
-- Only the rows that the next statement deletes.
update todoku_data_key set wrapped = '' where day >= :since and day < :before

-- name: delete_data_keys
-- Past days only: no process encrypts with their keys any more. Data encrypted by them becomes unreadable.
delete from todoku_data_key where day >= :since and day < :before returning id, day

-- name: newest_messages
-- Only reads, a limited number of rows from the end; payloads that are encrypted, not JSON or large are not returned.
select seq, topic, case when bytes <= :largest then payload::text end, bytes, payload is null
  from (select seq, topic, payload, coalesce(octet_length(payload::text), octet_length(payload_bytes), 0) as bytes
          from todoku_message order by seq desc limit :most) as newest
 order by seq desc

-- name: payloads
-- Only reads, by primary key; a message that was pruned meanwhile is left out.
select topic, payload::text from todoku_message
 where seq = any (:seqs::bigint[]) and payload is not null order by seq desc
