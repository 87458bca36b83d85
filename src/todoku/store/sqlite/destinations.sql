-- Destinations and queues that are known.

-- name: set_on_abort
-- Settle reads these rows when it aborts a lane's head. Returns the ones that were different before.
insert into todoku_destination (name, on_abort, seen_at) select value, :on_abort, :now from json_each(:names) where true
    on conflict (name) do update set on_abort = excluded.on_abort where on_abort <> excluded.on_abort
returning name

-- name: blocked_lanes
-- Only reads, once after a change of policy: the lanes of these destinations that wait for a person.
select id from todoku_lane where parked and destination in (select value from json_each(:destinations)) order by id

-- name: announce
-- Records that a worker serves these destinations.
insert into todoku_destination (name, seen_at) select value, :now from json_each(:destinations) where true
    on conflict (name) do update set seen_at = excluded.seen_at

-- name: known
-- Only reads: every queue and destination that has a row, and when a worker last announced it.
select 'queue', name, null from todoku_queue
union all
select 'destination', name, case when seen_at > 0 then seen_at / 1e6 end from todoku_destination
 order by 1, 2
