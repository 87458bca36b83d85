-- Batches.

-- name: publish_batch
-- Its members are published in the same transaction. A batch without members is complete at once.
insert into todoku_batch (id, total, open, "on", next, created_at, done_at)
values (:id, :total, :total, :on, :next, :now, case :total when 0 then :now end)

-- name: complete
-- A fragment: the batch waits for no member any more, and its next batch is not published yet.
(done_at is null and open = 0 and ("on" = 'finished' or aborted = 0))

-- name: lock_batches
-- No lock to take: there is one writer.
select 0

-- name: count_batches
-- Updates each batch once. Only ends of this transaction are counted, and a token ends once (I3).
update todoku_batch as b
   set open = b.open - json_extract(s.value, '$.ended'), succeeded = b.succeeded + json_extract(s.value, '$.succeeded'),
       aborted = b.aborted + json_extract(s.value, '$.aborted')
  from json_each(:counts) s where b.id = json_extract(s.value, '$.id');
select id, {complete}, next from todoku_batch
 where id in (select json_extract(value, '$.id') from json_each(:counts))

-- name: batch
-- Only reads.
select id, "on", total, open, succeeded, aborted, created_at / 1e6, done_at / 1e6 from todoku_batch where id = :id
