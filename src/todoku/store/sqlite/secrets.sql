-- Stored secrets.

-- name: lock_secrets
-- No lock to take: there is one writer.
select 0

-- name: secrets
-- Only reads: those of a name or of its family (null: all) that have not expired.
select id, name, value, master_key_id, created_at / 1e6,
       case when expires_at < 9223372036854775807 then expires_at / 1e6 end, :now / 1e6
  from todoku_secret
 where (:name is null or name = :name or substr(name, 1, length(:name) + 1) = :name || ':') and expires_at > :now
 order by created_at, id

-- name: put_secret
-- The present secrets were read in this transaction, under the one write lock.
insert into todoku_secret (id, name, value, master_key_id, created_at, expires_at)
values (:id, :name, :value, :master_key_id, :now,
        coalesce(:now + cast(:lasts * 1000000 as integer), 9223372036854775807))
    on conflict (id) do update
       set name = excluded.name, value = excluded.value, master_key_id = excluded.master_key_id,
           expires_at = excluded.expires_at

-- name: remove_secrets
-- They were read in this transaction, under the one write lock.
delete from todoku_secret where id in (select value from json_each(:ids))
