-- Index paths for small tables. The queries of the line run with sequential scans disabled; where the planner had no other
-- way, the plan cost 1e10, and a server that was built with LLVM compiled the query each time it ran (decision 5).
create index todoku_worker_expires on todoku_worker (expires_at);
create index todoku_destination_seen on todoku_destination (seen_at);
create index todoku_hook_seen on todoku_hook (seen_at);
create index todoku_data_key_day on todoku_data_key (day);
create index todoku_secret_expires on todoku_secret (expires_at);

-- What every worker asks every second: the queues and destinations that are held back, however many others there are.
create index todoku_queue_held on todoku_queue (name)
    where paused or "limit" is not null or rate is not null;
create index todoku_destination_held on todoku_destination (name)
    where open_until > '-infinity' or failures > 0 or "limit" is not null or rate is not null;

-- Parked lanes wait for a person, and are in neither of the two indexes of lanes at work.
create index todoku_lane_parked on todoku_lane (queue) where parked;
