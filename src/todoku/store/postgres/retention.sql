-- Expiry and pruning.

-- name: expire
-- Only waiting rows; a running one is left to its owner. Unordered, as free_orphans.
with late as materialized (
    select id from todoku_delivery
     where status in ('pending', 'failed') and expires_at <= todoku_now() and expires_at < 'infinity'
     limit :most for update skip locked
)
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'EXPIRED', error = 'it was not delivered in time',
       fingerprint = null, updated_at = todoku_now()
 where id = any (array(select id from late))
returning id, lane, gate

-- name: announced
-- Only reads: destinations that a worker has announced recently.
select name from todoku_destination where seen_at > todoku_now() - make_interval(secs => :after)

-- name: abort_unknown
-- Only rows that have waited that long themselves, so a rolling deployment loses nothing.
with stray as materialized (
    select id from todoku_delivery
     where queue = :queue and destination = :destination and status in ('pending', 'failed')
       and next_run_at <= todoku_now() - make_interval(secs => :after)
     order by id limit :most for update skip locked
)
update todoku_delivery
   set status = 'aborted', epoch = epoch + 1, reason = 'UNKNOWN_DESTINATION',
       error = 'no worker has registered ' || destination, fingerprint = null, updated_at = todoku_now()
 where id = any (array(select id from stray))
returning id, lane, gate

-- name: old_children_steps
-- Only reads, by the index of open steps: those that have waited for children as long as history is kept, less an hour, so that
-- nothing passes its retention between this and the statement that removes it.
select message_seq, step_key from todoku_step
 where state = 'open' and awaits is not null and kind = 'children'
   and started_at < todoku_now() - make_interval(secs => :ttl - 3600)

-- name: prune_batches
-- Only finished batches: one that still waits, for a replay, too, stays.
delete from todoku_batch where id = any (array(
    select id from todoku_batch
     where done_at is not null and done_at < todoku_now() - make_interval(secs => :ttl) limit :most))
returning 1

-- name: prune_hooks
-- Only hooks that `hooks` does not return any more.
delete from todoku_hook
 where seen_at <= (select max(seen_at) from ({announcements}) a) - make_interval(secs => :forgotten_after)

-- name: prune_messages
-- A message is removed only when it has no delivery left (I1), and deliveries are created with their message, never
-- later. That of a run stays as long after its last step, and takes its steps and signals with it (R14).
with chunk as materialized (
    select seq, created_at < todoku_now() - make_interval(secs => :ttl) as old
      from todoku_message where seq > :after order by seq limit :most
), gone as (
    delete from todoku_message m
     where m.seq = any (array(select seq from chunk where old))
       and not exists (select from todoku_delivery d where d.message_seq = m.seq offset 0)
       and not exists (select from todoku_step s
                        where s.message_seq = m.seq
                          and coalesce(s.ended_at, s.wake_at, s.started_at) >= todoku_now() - make_interval(secs => :ttl) offset 0)
    returning m.seq, m.labels
), stepless as (
    delete from todoku_step where message_seq = any (array(select seq from gone))
), signalless as (
    delete from todoku_signal where message_seq = any (array(select seq from gone))
), unlabelled as (
    delete from todoku_label l
     using (select seq, label from gone cross join lateral json_array_elements_text(labels) s(label)) g
     where l.label = g.label and l.message_seq = g.seq
)
select (select count(*) from gone), max(seq), count(*) = :most and bool_and(old) from chunk

-- name: prune_ledger
-- Never while a delivery with the key exists, dead letters included (H16); that of a run's `unique_for`, which its message
-- does not have, never while its delivery has not ended (R8).
with old as materialized (
    select ctid from todoku_ledger l
     where expires_at <= todoku_now() and expires_at < 'infinity'
       and not exists (select from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                        where m.key_hash = l.key_hash offset 0)
       and not (starts_with(l.scope, 'unique:')
                and exists (select from todoku_message m join todoku_delivery d on d.message_seq = m.seq
                             where m.id = l.message_id and m.headers::text like '%"todoku-run":%'
                               and d.status in ('pending', 'sending', 'failed') offset 0))
     limit :most for update skip locked
)
delete from todoku_ledger where ctid = any (array(select ctid from old))
returning 1

-- name: prune_attempts
-- Only of deliveries that no longer exist.
delete from todoku_attempt a where a.ctid = any (array(
    select ctid from todoku_attempt o
     where o.ended_at < todoku_now() - make_interval(secs => :ttl)
       and not exists (select from todoku_delivery d where d.id = o.delivery_id offset 0) limit :most))
returning 1

-- name: prune_results
-- By age alone: a result is retained as long as the history of its delivery.
delete from todoku_result where delivery_id = any (array(
    select delivery_id from todoku_result
     where created_at < todoku_now() - make_interval(secs => :ttl) limit :most))
returning 1

-- name: prune_inbox
-- By age alone: the retention is the deduplication window.
delete from todoku_inbox i where i.ctid = any (array(
    select ctid from todoku_inbox where seen_at < todoku_now() - make_interval(secs => :ttl) limit :most))
returning 1

-- name: prune_history
-- Drops whole partitions that no settle writes to any more.
select todoku_history_drop(todoku_now() - make_interval(secs => :ttl))

-- name: prepare_history
-- Creates missing partitions; the lock serializes two callers.
select todoku_history_ahead(:days::int) from pg_advisory_xact_lock(hashtext('todoku_history_ahead'))

-- name: stray_history
-- Only reads: rows outside the partitions of their days, which is an alarm (H27).
select count(*) from (select from todoku_history_default limit 1000) stray

-- name: prune_secrets
-- By time alone: expired secrets are not read any more.
delete from todoku_secret where id = any (array(
    select id from todoku_secret where expires_at <= todoku_now() limit :most))
returning 1

-- name: prune_cancelled
-- Cancelled requests, after the retention of delivered ones; their audit rows stay. Rows locked by another transaction
-- are skipped.
with old as materialized (
    select id from todoku_delivery
     where status = 'aborted' and {is_http} and updated_at < todoku_now() - make_interval(secs => :ttl)
       and reason = 'CANCELLED' limit :most for update skip locked
)
delete from todoku_delivery where id = any (array(select id from old))
returning 1

-- name: prune_queues
-- Only queues created by use: unused for long, and without deliveries. The next use creates them again.
delete from todoku_queue where name = any (array(
    select q.name from todoku_queue q
     where q.created_at is not null and not q.paused and q.spec ->> 'implicit' = 'true'
       and q.spec ->> 'pinned_parallelism' is null and q.spec ->> 'pinned_rate' is null
       and q.updated_at < todoku_now() - make_interval(secs => :ttl)
       and not exists (select from todoku_delivery d
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost = 0 and d.gate is null offset 0)
       and not exists (select from todoku_delivery d
                        where d.queue = q.name and d.status in ('pending', 'failed')
                          and d.lane is null and d.lost > 0 offset 0)
       and not exists (select from todoku_delivery d where d.status = 'sending' and d.queue = q.name offset 0)
       and not exists (select from todoku_lane l
                        where l.queue = q.name and l.worker_id is null and not l.parked offset 0)
       and not exists (select from todoku_lane l where l.queue = q.name and l.parked offset 0)
       and not exists (select from todoku_lane l where l.queue = q.name and l.worker_id is not null offset 0)
     order by q.name limit :most))
returning 1
