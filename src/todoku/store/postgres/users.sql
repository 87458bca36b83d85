-- People who sign in to the dashboard with a password.

-- name: user_columns
-- A fragment: a user with the hash of the password.
name, hash, role, disabled, date_part('epoch', created_at), date_part('epoch', changed_at)

-- name: add_user
-- Once: of two at the same time the second finds the name taken, and returns no row.
insert into todoku_user (name, hash, role, created_at, changed_at)
values (:name, :hash, :role, todoku_now(), todoku_now())
    on conflict (name) do nothing
returning {user_columns}

-- name: user
-- Only reads, by primary key.
select {user_columns}
  from todoku_user where name = :name

-- name: users
-- Only reads a bounded part, by primary key.
select {user_columns}
  from todoku_user where name > :after order by name limit :most

-- name: change_user
-- One row by primary key; what is null stays as it is. The same change twice is the same row.
update todoku_user
   set hash = coalesce(:hash, hash), role = coalesce(:role, role), disabled = coalesce(:disabled, disabled),
       changed_at = todoku_now()
 where name = :name
returning {user_columns}
