-- Expiry and pruning.

-- name: late
-- A fragment: waiting past its expiry.
select id from todoku_delivery indexed by todoku_delivery_expiring
 where status in ('pending', 'failed') and expires_at < 9223372036854775807 and expires_at <= :now limit :most

-- name: expire
-- Only waiting rows; a running one is left to its owner.
select id, lane, gate from todoku_delivery where id in ({late});
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'EXPIRED', error = 'it was not delivered in time',
       fingerprint = null, updated_at = :now
 where id in ({late})

-- name: announced
-- Only reads: destinations that a worker has announced recently.
select name from todoku_destination where seen_at > :now - cast(:after * 1000000 as integer)

-- name: stray
-- A fragment: has waited this long for a destination that no worker announces.
select id from todoku_delivery
 where queue = :queue and destination = :destination and status in ('pending', 'failed')
   and next_run_at <= :now - cast(:after * 1000000 as integer)
 order by id limit :most

-- name: abort_unknown
-- Only rows that have waited that long themselves, so a rolling deployment loses nothing.
select id, lane, gate from todoku_delivery where id in ({stray});
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'UNKNOWN_DESTINATION',
       error = 'no worker has registered ' || destination, fingerprint = null, updated_at = :now
 where id in ({stray})

-- name: old_children_steps
-- Only reads, by the index of open steps: those that have waited for children as long as history is kept, less an hour,
-- so that nothing passes its retention between this and the statement that removes it.
select message_seq, step_key from todoku_step
 where state = 'open' and awaits is not null and kind = 'children'
   and started_at < :now - cast((:ttl - 3600) * 1000000 as integer)

-- name: prune_batches
-- Only finished batches: one that still waits, for a replay, too, stays.
delete from todoku_batch where id in (
    select id from todoku_batch indexed by todoku_batch_done
     where done_at is not null and done_at < :now - cast(:ttl * 1000000 as integer) limit :most)
returning 1

-- name: prune_hooks
-- Only hooks that `hooks` does not return any more.
delete from todoku_hook
 where seen_at <= (select max(seen_at) from ({announcements})) - cast(:forgotten_after * 1000000 as integer)

-- name: old_messages
-- A fragment: of the next messages those that are old and have no delivery left.
select seq from (select seq, created_at from todoku_message where seq > :after order by seq limit :most) c
 where created_at < :now - cast(:ttl * 1000000 as integer)
   and not exists (select 1 from todoku_delivery d where d.message_seq = c.seq)
   and not exists (select 1 from todoku_step s
                    where s.message_seq = c.seq
                      and coalesce(s.ended_at, s.wake_at, s.started_at) >= :now - cast(:ttl * 1000000 as integer))

-- name: prune_messages
-- A message is removed only when it has no delivery left (I1), and deliveries are created with their message, never
-- later. That of a run stays as long after its last step, and takes its steps and signals with it (R14).
select (select count(*) from ({old_messages})), max(seq),
       count(*) = :most and min(created_at < :now - cast(:ttl * 1000000 as integer))
  from (select seq, created_at from todoku_message where seq > :after order by seq limit :most);
delete from todoku_label where (label, message_seq) in (
    select l.value, m.seq from todoku_message m, json_each(m.labels) l where m.seq in ({old_messages}));
delete from todoku_signal where message_seq in ({old_messages});
delete from todoku_step where message_seq in ({old_messages});
delete from todoku_message where seq in ({old_messages})

-- name: prune_ledger
-- Never while a delivery with the key exists, dead letters included (H16); that of a run's `unique_for`, which its message
-- does not have, never while its delivery has not ended (R8).
delete from todoku_ledger where (scope, key_hash) in (
    select scope, key_hash from todoku_ledger l
     where expires_at <= :now and expires_at < 9223372036854775807
       and not exists (select 1 from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                        where m.key_hash = l.key_hash)
       and not (substr(l.scope, 1, 7) = 'unique:'
                and exists (select 1 from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                             where m.id = l.message_id and m.headers like '%"todoku-run":%'
                               and d.status in ('pending', 'sending', 'failed')))
     limit :most)
returning 1

-- name: prune_attempts
-- Only of deliveries that no longer exist.
delete from todoku_attempt where rowid in (
    select o.rowid from todoku_attempt o
     where o.ended_at < :now - cast(:ttl * 1000000 as integer)
       and not exists (select 1 from todoku_delivery d where d.id = o.delivery_id) limit :most)
returning 1

-- name: prune_results
-- By age alone: a result is retained as long as the history of its delivery.
delete from todoku_result where delivery_id in (
    select delivery_id from todoku_result where created_at < :now - cast(:ttl * 1000000 as integer) limit :most)
returning 1

-- name: prune_inbox
-- By age alone: the retention is the deduplication window.
delete from todoku_inbox where (consumer, message_id) in (
    select consumer, message_id from todoku_inbox
     where seen_at < :now - cast(:ttl * 1000000 as integer) limit :most)
returning 1

-- name: old_history
-- A fragment: the next rows past their retention.
select rowid from todoku_history where finished_at < :now - cast(:ttl * 1000000 as integer) limit 50000

-- name: prune_history
-- By age alone; nothing writes to old rows.
select count(*) from ({old_history});
delete from todoku_history where rowid in ({old_history})

-- name: prepare_history
-- SQLite has no partitions to create.
select 0

-- name: stray_history
-- SQLite has no partitions, so no stray rows.
select 0

-- name: prune_secrets
-- By time alone: expired secrets are not read any more. The bytes are overwritten first.
update todoku_secret set value = zeroblob(length(value)) where expires_at <= :now;
delete from todoku_secret where id in (select id from todoku_secret where expires_at <= :now limit :most)
returning 1

-- name: prune_cancelled
-- Cancelled requests, after the retention of delivered ones; their audit rows stay.
delete from todoku_delivery where id in (
    select id from todoku_delivery indexed by todoku_delivery_died
     where status = 'aborted' and {is_http} and updated_at < :now - cast(:ttl * 1000000 as integer)
       and reason = 'CANCELLED' limit :most)
returning 1

-- name: prune_queues
-- Only queues created by use: unused for long, and without deliveries. The next use creates them again.
delete from todoku_queue where name in (
    select q.name from todoku_queue q
     where q.created_at is not null and q.paused = 0 and json_extract(q.spec, '$.implicit')
       and json_extract(q.spec, '$.pinned_parallelism') is null and json_extract(q.spec, '$.pinned_rate') is null
       and q.updated_at < :now - cast(:ttl * 1000000 as integer)
       and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_due
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost = 0 and d.gate is null)
       and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_suspect
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost > 0)
       and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_owner
                        where d.status = 'sending' and d.queue = q.name)
       and not exists (select 1 from todoku_lane l where l.queue = q.name)
     limit :most)
returning 1
