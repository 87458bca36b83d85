-- Sessions of browsers that are signed in to the dashboard.

-- name: add_session
-- The hash is new: the session's id is random.
insert into todoku_session (hash, kind, subject, name, role, csrf, created_at, seen_at, expires_at)
values (:hash, :kind, :subject, :name, :role, :csrf, todoku_now(), todoku_now(),
        todoku_now() + make_interval(secs => :lasts))

-- name: session
-- Only reads, by primary keys. A session ends by time, with its user, and with its token; a user's role is the present one.
select s.kind, s.subject, s.name, coalesce(u.role, s.role), s.csrf, date_part('epoch', s.created_at),
       date_part('epoch', s.seen_at), date_part('epoch', s.expires_at)
  from todoku_session s
  left join todoku_user u on s.kind = 'user' and u.name = s.subject
  left join todoku_api_key k on k.id = case when s.kind = 'token' then cast(s.subject as uuid) end
 where s.hash = :hash and s.expires_at > todoku_now() and s.seen_at > todoku_now() - make_interval(secs => :idle)
   and (s.kind <> 'user' or not u.disabled)
   and (s.kind <> 'token' or (k.revoked_at is null and (k.expires_at is null or k.expires_at > todoku_now())))
   and (s.kind <> 'token' or k.id is not null)

-- name: see_session
-- One row by primary key, and seldom; a time only moves forward.
update todoku_session set seen_at = todoku_now()
 where hash = :hash and seen_at <= todoku_now() - make_interval(secs => :every)

-- name: end_session
-- One row by primary key; ending it twice is ending it once.
delete from todoku_session where hash = :hash returning 1

-- name: end_sessions
-- All sessions of one person, by the index of subjects.
delete from todoku_session where kind = :kind and subject = :subject returning 1

-- name: prune_sessions
-- By time alone: a session that has expired is not read any more, and is never extended.
delete from todoku_session where hash in (
    select hash from todoku_session where expires_at <= todoku_now() limit :most)
returning 1
