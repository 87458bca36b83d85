-- Data keys.

-- name: data_keys
-- Only reads, by the index of ids: a key is stored before, or together with, the message that needs it.
select id, day, master_key_id, wrapped from todoku_data_key
 where id in (select value from json_each(:ids)) order by seq

-- name: data_key_days
-- Only reads; keys are few: one for each process and day.
select day, master_key_id, count(distinct id), min(created_at) / 1e6
  from todoku_data_key group by day, master_key_id order by day, master_key_id

-- name: stale_data_keys
-- No lock to take: there is one writer.
select seq, id, day, master_key_id, wrapped from todoku_data_key
 where seq > :after and master_key_id <> :current order by seq limit :most

-- name: rewrap_data_key
-- Read by stale_data_keys in this transaction.
update todoku_data_key set master_key_id = :master_key_id, wrapped = :wrapped where seq = :seq

-- name: count_data_keys
-- Only reads.
select count(distinct id) from todoku_data_key where day >= :since and day < :before

-- name: stranded
-- Only reads: deliveries that have not succeeded and are encrypted by a key of these days. The id of the key is in the
-- encrypted bytes, and for a request with secret headers also at the start of those.
select coalesce(sum(d.status <> 'aborted'), 0), coalesce(sum(d.status = 'aborted'), 0)
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where (m.content_type like :kind
        and lower(hex(substr(m.payload_bytes, 2, 16))) in (
            select replace(id, '-', '') from todoku_data_key where day >= :since and day < :before))
    or (m.headers like :secrets
        and substr(json_extract(m.headers, '$."todoku-secrets"'), 1, 36) in (
            select id from todoku_data_key where day >= :since and day < :before))

-- name: stranded_runs
-- Only reads: steps and signals of encrypted runs, which are sealed with the data key of their message. A step that keeps
-- nothing, such as a sleep, stays readable; so do signals of before they were sealed.
with run as materialized (
    select m.seq from todoku_message m
     where m.content_type like :kind
       and lower(hex(substr(m.payload_bytes, 2, 16))) in (
            select replace(id, '-', '') from todoku_data_key where day >= :since and day < :before)
)
select (select count(*) from run cross join todoku_step s on s.message_seq = run.seq
         where '"todoku.sealed":' in (substr(s.arguments, 2, 16), substr(s.result, 2, 16), substr(s.undo, 2, 16))),
       (select count(*) from run cross join todoku_signal s on s.message_seq = run.seq
         where substr(s.payload, 2, 16) = '"todoku.sealed":')

-- name: blank_data_keys
-- Only the rows that the next statement deletes; the new value has the same length, so that the bytes are overwritten
-- in place.
update todoku_data_key set wrapped = zeroblob(length(wrapped)) where day >= :since and day < :before

-- name: delete_data_keys
-- Past days only: no process encrypts with their keys any more. Data encrypted by them becomes unreadable.
delete from todoku_data_key where day >= :since and day < :before returning id, day

-- name: newest_messages
-- Only reads, a limited number of rows from the end; payloads that are encrypted, not JSON or large are not returned.
select seq, topic, case when bytes <= :largest then payload end, bytes, payload is null
  from (select seq, topic, payload, coalesce(length(cast(payload as blob)), length(payload_bytes), 0) as bytes
          from todoku_message order by seq desc limit :most) as newest
 order by seq desc

-- name: payloads
-- Only reads, by primary key; a message that was pruned meanwhile is left out.
select topic, payload from todoku_message
 where seq in (select value from json_each(:seqs)) and payload is not null order by seq desc
