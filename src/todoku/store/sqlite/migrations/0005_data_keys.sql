-- Data keys of encrypted messages, one a process and day, each wrapped by a master key that is not in here. `id` is not
-- unique: every transaction may bring the key it has sealed with, and none waits for another's. Copies are equal but for
-- the master key they are wrapped by.
create table todoku_data_key (
    seq           integer primary key autoincrement,
    id            text not null,
    day           text not null,
    master_key_id text not null,
    wrapped       blob not null,
    created_at    integer not null
) strict;
create index todoku_data_key_id on todoku_data_key (id);
