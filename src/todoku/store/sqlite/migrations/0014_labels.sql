-- Labels of messages, so that a search by label is answered by an index, newest first. A message without labels has no row
-- here. Rows are removed with their message, by the labels that it has itself.
create table todoku_label (
    label       text not null,
    message_seq integer not null,
    primary key (label, message_seq)
) strict, without rowid;
insert or ignore into todoku_label (label, message_seq)
select l.value, m.seq from todoku_message m, json_each(m.labels) l
 where m.labels is not null and json_valid(m.labels) and l.type = 'text' and length(l.value) <= 512;

-- The dead letters of a lane: the first of them may have parked it.
create index todoku_delivery_lane_dead on todoku_delivery (lane, id)
    where status = 'aborted' and lane is not null;
