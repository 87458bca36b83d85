-- URL groups and endpoints.

-- name: groups
-- Only reads: there are few.
select name, headers, created_at / 1e6, updated_at / 1e6 from todoku_group
 where :names is null or name in (select value from json_each(:names))
 order by name

-- name: endpoints
-- Only reads: there are few. In the order in which they were added.
select group_name, url, name, state = 'enabled', reason from todoku_endpoint
 where group_name is not null and (:names is null or group_name in (select value from json_each(:names)))
 order by group_name, id

-- name: put_group
-- One row; the headers stay unless new ones are given.
insert into todoku_group (name, headers, created_at, updated_at) values (:name, :headers, :now, :now)
    on conflict (name) do update
       set headers = coalesce(excluded.headers, todoku_group.headers), updated_at = excluded.updated_at

-- name: put_endpoint
-- One row for a URL in a group; putting it again enables it again.
insert into todoku_endpoint (id, url, state, spec, updated_at, group_name, name, created_at)
values (:id, :url, 'enabled', '{}', :now, :group, :name, :now)
    on conflict (group_name, url) do update
       set name = excluded.name, state = 'enabled', reason = null, updated_at = excluded.updated_at

-- name: remove_endpoints
-- Published messages are still delivered: a message contains its URL.
delete from todoku_endpoint
 where group_name = :group and (url in (select value from json_each(:urls)) or name in (select value from json_each(:names)))
returning url

-- name: touch_group
-- In the transaction that changed its endpoints.
update todoku_group set updated_at = :now where name = :name

-- name: remove_empty_group
-- In the transaction that removed its last endpoint.
delete from todoku_group where name = :name and not exists (select 1 from todoku_endpoint where group_name = :name)

-- name: remove_group
-- With its endpoints, in one transaction. Messages contain their URL, and are still delivered.
delete from todoku_endpoint where group_name = :name;
delete from todoku_group where name = :name returning name

-- name: set_endpoint
-- A second caller changes nothing: the endpoint already has the state.
update todoku_endpoint set state = :state, reason = :reason, updated_at = :now
 where url = :url and (:group is null or group_name = :group) and state <> :state
returning id
