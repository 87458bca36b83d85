-- API tokens.

-- name: api_key_columns
-- A fragment: a token without its hash, and whether it is alive.
id, name, scopes, date_part('epoch', created_at), date_part('epoch', expires_at), date_part('epoch', revoked_at),
       date_part('epoch', last_used_at), revoked_at is null and (expires_at is null or expires_at > todoku_now())

-- name: add_api_key
-- The id and the hash are new: both are random.
insert into todoku_api_key (id, name, hash, scopes, created_at, expires_at)
values (:id, :name, :hash, :scopes, todoku_now(), todoku_now() + make_interval(secs => :lasts))

-- name: any_api_key
-- Only reads, under lock_secrets.
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
update todoku_api_key set revoked_at = todoku_now() where id = :id and revoked_at is null
returning {api_key_columns}

-- name: use_api_key
-- One row, and seldom: only operators read it.
update todoku_api_key set last_used_at = todoku_now()
 where id = :id and (last_used_at is null or last_used_at <= todoku_now() - make_interval(secs => :every))
