-- The documents, beside todoku's tables. A deleted one stays as its last revision, marked: the truth that projections are
-- compared with. Nothing is done that is done already.
create table if not exists documents (
    id           text primary key,
    revision     integer not null check (revision > 0),
    title        text not null,
    body         text not null,
    author       text not null,
    published_on text,
    deleted      integer not null default 0 check (deleted in (0, 1))
) strict;
