-- URL groups and endpoints.

-- name: groups
-- Only reads: there are few.
select name, headers::text, date_part('epoch', created_at), date_part('epoch', updated_at) from todoku_group
 where :names::text[] is null or name = any (:names::text[])
 order by name

-- name: endpoints
-- Only reads: there are few. In the order in which they were added.
select group_name, url, name, state = 'enabled', reason from todoku_endpoint
 where group_name is not null and (:names::text[] is null or group_name = any (:names::text[]))
 order by group_name, id

-- name: put_group
-- One row, locked from here on; the headers stay unless new ones are given.
insert into todoku_group (name, headers, created_at, updated_at) values (:name, :headers::json, todoku_now(), todoku_now())
    on conflict (name) do update
       set headers = coalesce(excluded.headers, todoku_group.headers), updated_at = excluded.updated_at

-- name: put_endpoint
-- One row for a URL in a group, sorted by URL: no deadlock. Putting it again enables it again.
insert into todoku_endpoint (id, url, state, spec, updated_at, group_name, name, created_at)
values (:id, :url, 'enabled', '{}'::json, todoku_now(), :group, :name, todoku_now())
    on conflict (group_name, url) do update
       set name = excluded.name, state = 'enabled', reason = null, updated_at = excluded.updated_at

-- name: remove_endpoints
-- Published messages are still delivered: a message contains its URL.
delete from todoku_endpoint
 where group_name = :group and (url = any (:urls::text[]) or name = any (:names::text[]))
returning url

-- name: touch_group
-- In the transaction that changed its endpoints.
update todoku_group set updated_at = todoku_now() where name = :name

-- name: remove_empty_group
-- The row is locked by touch_group: a caller that adds an endpoint meanwhile waits, and creates the group again.
delete from todoku_group where name = :name and not exists (select from todoku_endpoint where group_name = :name)

-- name: remove_group
-- With its endpoints, in one statement. Messages contain their URL, and are still delivered.
with gone as (delete from todoku_endpoint where group_name = :name)
delete from todoku_group where name = :name returning name

-- name: set_endpoint
-- A second caller changes nothing: the endpoint already has the state.
update todoku_endpoint set state = :state, reason = :reason, updated_at = todoku_now()
 where url = :url and (:group::text is null or group_name = :group) and state <> :state
returning id
