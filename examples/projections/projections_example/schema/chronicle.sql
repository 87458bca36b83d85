-- What the chronicle projects the events to: an entry for each, by document. The same on SQLite and PostgreSQL, in the
-- database of the documents or in another.
create table if not exists chronicle_entries (
    document_id text not null,
    number      integer not null,
    what        text not null,
    title       text not null,
    at          text not null,
    message_id  text not null unique,
    primary key (document_id, number)
);
