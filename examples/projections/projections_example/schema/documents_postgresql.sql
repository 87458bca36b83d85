-- The documents, beside todoku's tables. A deleted one stays as its last revision, marked: the truth that projections are
-- compared with. Nothing is done that is done already.
-- A second process waits: `if not exists` of two at once can still collide in the catalogue.
select pg_advisory_xact_lock(hashtext('projections_example'));

create table if not exists documents (
    id           text collate "C" primary key,
    revision     integer not null check (revision > 0),
    title        text not null,
    body         text not null,
    author       text not null,
    published_on text,
    deleted      boolean not null default false
);
