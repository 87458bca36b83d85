-- Invariants: each query finds the rows that break one. All run in one snapshot: a transaction is seen whole or not
-- at all.

-- name: verify_acknowledged
-- Only reads. I1: a message has a delivery, unfinished or in the history, unless an operator purged it or its
-- retention has passed.
select 'message ' || m.id from todoku_message m
 where not exists (select from todoku_delivery d where d.message_seq = m.seq)
   and not exists (select from todoku_history h where h.message_seq = m.seq)
   and not exists (select from todoku_audit a where a.target = 'message:' || m.id)
   and m.created_at > todoku_now() - make_interval(secs => :history_ttl)
 limit :most

-- name: verify_message
-- Only reads. I1: every delivery has a message.
select 'delivery ' || d.id from todoku_delivery d
 where not exists (select from todoku_message m where m.seq = d.message_seq) limit :most

-- name: verify_one_state
-- Only reads. I1: a delivery is unfinished or in the history, never both.
select 'delivery ' || d.id from todoku_delivery d
  join todoku_history h on h.message_seq = d.message_seq and h.delivery_id = d.id limit :most

-- name: verify_finished_once
-- Only reads. I1, I3: a delivery succeeds once.
select 'delivery ' || delivery_id from todoku_history
 group by message_seq, delivery_id having count(*) > 1 limit :most

-- name: verify_reserved
-- Only reads. I2: a key in use was reserved together with its message.
select 'key ' || l.key_hash || ' of ' || l.scope from todoku_ledger l
 where l.scope like 'publish:%' and l.expires_at = 'infinity' and l.message_id is not null
   and not exists (select from todoku_message m where m.id = l.message_id)
 limit :most

-- name: verify_owner
-- Only reads. I3: a running delivery has an owner, and no other has one.
select 'delivery ' || id from todoku_delivery
 where (status = 'sending') <> (worker_id is not null) limit :most

-- name: verify_orphan
-- Only reads. I3: no delivery has an owner without a lease; a reclaim frees them within seconds.
select 'delivery ' || d.id from todoku_delivery d
 where d.status = 'sending' and not exists (select from todoku_worker w where w.id = d.worker_id) limit :most

-- name: verify_lane_owner
-- Only reads. I3, I10: running deliveries of a lane, listed ones too, belong to the worker that owns the lane.
select 'delivery ' || d.id
  from (select id, lane, worker_id from todoku_delivery where status = 'sending' and lane is not null
        union all
        select d.id, d.lane, c.worker_id
          from todoku_claim_list c cross join lateral unnest(c.ids) as named(id)
          join todoku_delivery d on d.id = named.id
         where d.epoch = 0 and d.worker_id is null and d.lane is not null) d
  left join todoku_lane l on l.id = d.lane
 where l.worker_id is distinct from d.worker_id limit :most

-- name: verify_epoch
-- Only reads. I4: the epoch rises with every claim, and is above that of every recorded attempt.
select 'delivery ' || d.id from todoku_delivery d
 where d.epoch < d.attempts
    or exists (select from todoku_attempt a where a.delivery_id = d.id and a.epoch >= d.epoch)
 limit :most

-- name: verify_attempts
-- Only reads. I4: no delivery has more attempts than allowed.
select 'delivery ' || id from todoku_delivery where attempts > max_attempts limit :most

-- name: verify_token
-- Only reads. I4: a token works once, so no two attempts of a delivery have the same epoch.
select 'delivery ' || delivery_id || ' epoch ' || epoch from todoku_attempt
 group by delivery_id, epoch having count(*) > 1 limit :most

-- name: verify_ledger
-- Only reads. I5: a success with a key is in the ledger for the retention of keys.
select 'delivery ' || h.delivery_id from todoku_history h
  join todoku_message m on m.seq = h.message_seq
 where m.key_hash is not null and h.finished_at > todoku_now() - make_interval(secs => :ledger_ttl)
   and not exists (select from todoku_ledger l
                    where l.scope = 'effect:' || h.destination and l.key_hash = m.key_hash
                      and l.state = 'succeeded' and (l.digest = m.digest or h.worker_id is null))
 limit :most

-- name: verify_replays
-- Only reads. I9: a dead letter was reopened only by replays that the audit records.
select 'delivery ' || d.id from (
    select id, replay_count from todoku_delivery where replay_count > 0
    union all
    select delivery_id, replay_count from todoku_history where replay_count > 0) d
 where d.replay_count > (select count(*) from todoku_audit a
                          where a.target = 'delivery:' || d.id and a.action = 'replay')
 limit :most

-- name: verify_lane
-- Only reads. I10: a delivery that waits in a lane has a lane row; without one it would never be claimed.
select 'delivery ' || d.id from todoku_delivery d
 where d.lane is not null and d.status <> 'aborted'
   and not exists (select from todoku_lane l where l.id = d.lane)
 limit :most

-- name: verify_parked
-- Only reads. I10: a lane is parked by a dead letter, which an operator can replay or purge.
select 'lane ' || l.id from todoku_lane l
 where l.parked and not exists (
    select from todoku_delivery d
     where d.lane = l.id and d.status = 'aborted' and coalesce(d.reason, '') <> all (:gone::text[]))
 limit :most

-- name: verify_lane_time
-- Only reads. I10: a lane is due no later than its first delivery.
select 'lane ' || l.id from todoku_lane l
 cross join lateral (select next_run_at from todoku_delivery d
                      where d.lane = l.id and d.status <> 'aborted' order by d.id limit 1) head
 where l.worker_id is null and not l.parked
   and l.ready_at > greatest(head.next_run_at, todoku_now()) + interval '1 second'
 limit :most

-- name: verify_batch
-- Only reads. I1, I3: every member of a batch is counted once, as open, succeeded or aborted.
select 'batch ' || id from todoku_batch
 where open < 0 or succeeded < 0 or aborted < 0 or open + succeeded + aborted <> total limit :most

-- name: verify_batch_due
-- Only reads. I1: the next batch of a complete one is published; maintenance publishes those that could not be
-- published at once.
select 'batch ' || id from todoku_batch where {complete} limit :most

-- name: verify_gate
-- Only reads. I1: a delivery that waits at a gate has a gate row, or a call that will create it; without one it would
-- never be claimed.
select 'delivery ' || d.id from todoku_delivery d
 where d.gate is not null and d.status in ('pending', 'failed')
   and not exists (select from todoku_gate g where g.id = d.gate)
   and not exists (select from todoku_gate_call c where c.gate = d.gate)
 limit :most

-- name: verify_gate_running
-- Only reads. The count of a gate equals its running deliveries: a higher one would let too few start, a lower one too
-- many.
select 'gate ' || g.id from todoku_gate g
 where g.running <> (select count(*) from todoku_delivery d where d.gate = g.id and d.status = 'sending')
 limit :most

-- name: verify_gate_time
-- Only reads. A gate is due no later than its first delivery, as far as its rate allows.
select 'gate ' || g.id from todoku_gate g
 where g.ready_at > todoku_now() + interval '1 second' and (g.tat is null or g.ready_at > g.tat + interval '1 second')
   and exists (select from todoku_delivery d where d.gate = g.id and d.status in ('pending', 'failed') and d.lost = 0
                  and d.next_run_at < g.ready_at - interval '1 second' and d.expires_at > todoku_now())
   and not exists (select from todoku_gate_call c where c.gate = g.id)
 limit :most

-- name: verify_tried
-- Only reads. Attempts written before the column existed have no message.
select 'delivery ' || d.id || ' epoch ' || a.epoch from todoku_attempt a join todoku_delivery d on d.id = a.delivery_id
 where a.message_seq <> d.message_seq limit :most

-- name: verify_endpoint
-- Only reads.
select 'endpoint ' || e.url from todoku_endpoint e
 where e.group_name is not null and not exists (select from todoku_group g where g.name = e.group_name) limit :most

-- name: verify_clock
-- Only reads. I12: times come from the database's clock, so no row was changed in the future.
select 'delivery ' || id from todoku_delivery
 where updated_at > todoku_now() + interval '5 seconds' limit :most

-- name: verify_step
-- Only reads. I1: steps and signals are removed together with their message.
select 'message number ' || s.message_seq from (
    select message_seq from todoku_step union select message_seq from todoku_signal) s
 where not exists (select from todoku_message m where m.seq = s.message_seq)
 limit :most

-- name: verify_signal
-- Only reads. I3: a signal that was delivered is with a wait that has it: both are one commit.
select 'message number ' || g.message_seq || ' signal ' || g.name from todoku_signal g
 where g.step_key is not null
   and not exists (select from todoku_step s
                    where s.message_seq = g.message_seq and s.step_key = g.step_key and s.kind = 'wait'
                      and s.state = 'done')
 limit :most

-- name: verify_woken
-- Only reads. I1: what a parked run waits for has not happened, or a call wakes the run. Only of waits and children that
-- its last attempt asked for, which wrote them one epoch ago: code may leave others behind.
select 'delivery ' || d.id || ' ' || s.name
  from todoku_step s join todoku_delivery d on d.message_seq = s.message_seq
 where s.state = 'open' and s.awaits is not null and s.epoch = d.epoch - 1
   and d.status = 'pending' and d.next_run_at > todoku_now() + interval '1 second'
   and (exists (select from todoku_signal g
                 where s.kind = 'wait' and g.message_seq = s.message_seq and g.name = s.awaits and g.step_key is null)
        or exists (select from todoku_batch b
                    where s.kind = 'children' and b.id::text = s.awaits and b.done_at is not null))
   and not exists (select from todoku_run_call c where c.message_seq = s.message_seq and c.awaits = s.awaits)
 limit :most

-- name: verify_undone
-- Only reads. I9: a run whose undo has begun is never run again.
select 'delivery ' || d.id from todoku_step s join todoku_delivery d on d.message_seq = s.message_seq
 where s.step_key = '~undo' and d.status <> 'aborted'
 limit :most
