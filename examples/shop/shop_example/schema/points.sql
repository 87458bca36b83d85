-- The consumer's own state, in a database of its own, beside todoku's inbox. The same on SQLite and PostgreSQL.
create table if not exists points (
    user_id text primary key,
    points  bigint not null
);
