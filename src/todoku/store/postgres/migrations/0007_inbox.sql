-- The newest number a consumer has seen of a key, for consumers that keep only the latest state of each.
create table todoku_inbox_sequence (
    consumer text not null,
    key      text not null,
    sequence bigint not null,
    seen_at  timestamptz not null,
    primary key (consumer, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
