-- What is kept of the traceback of a failed attempt: its text, and a fingerprint that is the same for failures of the same
-- type in the same functions. The last one stands with the delivery, so that dead letters are grouped and found by it.
alter table todoku_attempt add column traceback text;
alter table todoku_attempt add column fingerprint text;
alter table todoku_delivery add column fingerprint text;
create index todoku_delivery_fingerprint on todoku_delivery (fingerprint, id)
    where status = 'aborted' and fingerprint is not null;
