-- Labels of messages, so that a search by label is answered by an index, newest first. A message without labels has no row
-- here. Rows are removed with their message, by the labels that it has itself.
create table todoku_label (
    label       text collate "C" not null,
    message_seq bigint not null,
    primary key (label, message_seq)
) with (autovacuum_vacuum_insert_scale_factor = 0.05);
insert into todoku_label (label, message_seq)
select distinct l.label, m.seq
  from todoku_message m cross join lateral json_array_elements_text(m.labels) l(label)
 where m.labels is not null and json_typeof(m.labels) = 'array' and length(l.label) <= 512;

-- The messages of a key, newest first.
create index todoku_message_key_seq on todoku_message (key, seq) where key is not null;
drop index todoku_message_key;

-- A delivery that succeeded, by its number. Rows are appended in about the order of their numbers, so an index of a few
-- pages finds their blocks; those that succeeded late are told apart from the rest of their block.
create index todoku_history_delivery on todoku_history
 using brin (delivery_id int8_minmax_multi_ops) with (pages_per_range = 16, autosummarize = on);

-- The dead letters of a lane: the first of them may have parked it.
create index todoku_delivery_lane_dead on todoku_delivery (lane, id)
    where status = 'aborted' and lane is not null;
