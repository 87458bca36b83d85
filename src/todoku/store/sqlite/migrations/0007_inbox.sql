-- The newest number a consumer has seen of a key, for consumers that keep only the latest state of each.
create table todoku_inbox_sequence (
    consumer text not null,
    key      text not null,
    sequence integer not null,
    seen_at  integer not null,
    primary key (consumer, key)
) strict, without rowid;
