-- Stored secrets.

-- name: lock_secrets
-- A separate statement: the next one sees what the previous holder of the lock committed. The lock ends with the
-- transaction.
select pg_advisory_xact_lock(hashtext('todoku secrets'))

-- name: secrets
-- Only reads: those of a name or of its family (null: all) that have not expired.
select id, name, value, master_key_id, date_part('epoch', created_at),
       case when expires_at < 'infinity' then date_part('epoch', expires_at) end, date_part('epoch', todoku_now())
  from todoku_secret
 where (:name::text is null or name = :name or starts_with(name, :name::text || ':')) and expires_at > todoku_now()
 order by created_at, id

-- name: put_secret
-- The present secrets were read in this transaction, under lock_secrets.
insert into todoku_secret (id, name, value, master_key_id, created_at, expires_at)
values (:id, :name, :value, :master_key_id, todoku_now(),
        coalesce(todoku_now() + make_interval(secs => :lasts), 'infinity'))
    on conflict (id) do update
       set name = excluded.name, value = excluded.value, master_key_id = excluded.master_key_id,
           expires_at = excluded.expires_at

-- name: remove_secrets
-- They were read in this transaction, under lock_secrets.
delete from todoku_secret where id = any (:ids::text[]::uuid[])
