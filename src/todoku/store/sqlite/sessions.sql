-- Sessions of browsers that are signed in to the dashboard.

-- name: add_session
-- The hash is new: the session's id is random.
insert into todoku_session (hash, kind, subject, name, role, csrf, created_at, seen_at, expires_at)
values (:hash, :kind, :subject, :name, :role, :csrf, :now, :now, :now + cast(:lasts * 1000000 as integer))

-- name: session
-- Only reads, by primary keys. A session ends by time, with its user, and with its token; a user's role is the present one.
select s.kind, s.subject, s.name, coalesce(u.role, s.role), s.csrf, s.created_at / 1e6, s.seen_at / 1e6,
       s.expires_at / 1e6
  from todoku_session s
  left join todoku_user u on s.kind = 'user' and u.name = s.subject
  left join todoku_api_key k on s.kind = 'token' and k.id = s.subject
 where s.hash = :hash and s.expires_at > :now and s.seen_at > :now - cast(:idle * 1000000 as integer)
   and (s.kind <> 'user' or u.disabled = 0)
   and (s.kind <> 'token' or (k.revoked_at is null and (k.expires_at is null or k.expires_at > :now)))
   and (s.kind <> 'token' or k.id is not null)

-- name: see_session
-- One row by primary key, and seldom; a time only moves forward.
update todoku_session set seen_at = :now
 where hash = :hash and seen_at <= :now - cast(:every * 1000000 as integer)

-- name: end_session
-- One row by primary key; ending it twice is ending it once.
delete from todoku_session where hash = :hash returning 1

-- name: end_sessions
-- All sessions of one person, by the index of subjects.
delete from todoku_session where kind = :kind and subject = :subject returning 1

-- name: prune_sessions
-- By time alone: a session that has expired is not read any more, and is never extended.
delete from todoku_session where hash in (
    select hash from todoku_session where expires_at <= :now limit :most)
returning 1
