-- API tokens.

-- name: api_key_columns
-- A fragment: a token without its hash, and whether it is alive.
id, name, scopes, created_at / 1e6, expires_at / 1e6, revoked_at / 1e6, last_used_at / 1e6,
       revoked_at is null and (expires_at is null or expires_at > :now)

-- name: add_api_key
-- The id and the hash are new: both are random.
insert into todoku_api_key (id, name, hash, scopes, created_at, expires_at)
values (:id, :name, :hash, :scopes, :now, :now + cast(:lasts * 1000000 as integer))

-- name: any_api_key
-- Only reads, under the one write lock.
select 1 from todoku_api_key limit 1

-- name: api_key
-- Only reads, by the unique index of hashes.
select {api_key_columns}
  from todoku_api_key where hash = :hash

-- name: api_keys
-- Only reads.
select {api_key_columns}
  from todoku_api_key order by created_at, id

-- name: revoke_api_key
-- One row, once: a revoked token stays revoked.
update todoku_api_key set revoked_at = :now where id = :id and revoked_at is null
returning {api_key_columns}

-- name: use_api_key
-- One row, and seldom: only operators read it.
update todoku_api_key set last_used_at = :now
 where id = :id and (last_used_at is null or last_used_at <= :now - cast(:every * 1000000 as integer))
