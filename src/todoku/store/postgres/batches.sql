-- Batches.

-- name: publish_batch
-- Its members are published in the same transaction. A batch without members is complete at once.
insert into todoku_batch (id, total, open, "on", next, created_at, done_at)
select id, total, total, "on", next, todoku_now(), case total when 0 then todoku_now() end
  from json_to_recordset(cast(cast(:batches as text) as json)) as s(id uuid, total int, "on" text, next json)

-- name: lock_batches
-- Sorted (H11), and a separate statement: the next one sees what others counted before this one got the locks.
select from todoku_batch where id = any (:ids::text[]::uuid[]) order by id for update

-- name: count_batches
-- The rows are locked; updates each batch once. Only ends of this transaction are counted, and a token ends once (I3).
update todoku_batch b
   set open = b.open - s.ended, succeeded = b.succeeded + s.succeeded, aborted = b.aborted + s.aborted
  from json_to_recordset(:counts::json) as s(id uuid, ended int, succeeded int, aborted int)
 where b.id = s.id and b.id = any (array(select id from json_to_recordset(:counts::json) as c(id uuid)))
returning b.id::text, done_at is null and b.open = 0 and ("on" = 'finished' or b.aborted = 0), next::text

-- name: batch
-- Only reads.
select id::text, "on", total, open, succeeded, aborted, date_part('epoch', created_at), date_part('epoch', done_at)
  from todoku_batch where id = :id::uuid
