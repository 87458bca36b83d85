-- URL groups and endpoints.

-- name: groups
-- Only reads: there are few.
select name, headers, created_at / 1e6, updated_at / 1e6 from todoku_group
 where :names is null or name in (select value from json_each(:names))
 order by name

-- name: endpoints
-- Only reads: there are few. In the order in which they came.
select group_name, url, name, state = 'enabled', reason from todoku_endpoint
 where group_name is not null and (:names is null or group_name in (select value from json_each(:names)))
 order by group_name, id

-- name: put_group
-- One row; headers stay unless others are given.
insert into todoku_group (name, headers, created_at, updated_at) values (:name, :headers, :now, :now)
    on conflict (name) do update
       set headers = coalesce(excluded.headers, todoku_group.headers), updated_at = excluded.updated_at

-- name: put_endpoint
-- One row of a group for a URL; put again, it is enabled again.
insert into todoku_endpoint (id, url, state, spec, updated_at, group_name, name, created_at)
values (:id, :url, 'enabled', '{}', :now, :group, :name, :now)
    on conflict (group_name, url) do update
       set name = excluded.name, state = 'enabled', reason = null, updated_at = excluded.updated_at

-- name: remove_endpoints
-- What was published is delivered: a message carries its URL.
delete from todoku_endpoint
 where group_name = :group and (url in (select value from json_each(:urls)) or name in (select value from json_each(:names)))
returning url

-- name: touch_group
-- In the transaction that changed its endpoints.
update todoku_group set updated_at = :now where name = :name

-- name: remove_empty_group
-- In the transaction that took its last endpoint.
delete from todoku_group where name = :name and not exists (select 1 from todoku_endpoint where group_name = :name)

-- name: remove_group
-- With its endpoints, in one transaction. Messages carry their URL, and are delivered.
delete from todoku_endpoint where group_name = :name;
delete from todoku_group where name = :name returning name

-- name: set_endpoint
-- Whoever comes second changes nothing: it is so already.
update todoku_endpoint set state = :state, reason = :reason, updated_at = :now
 where url = :url and (:group is null or group_name = :group) and state <> :state
returning id
