-- HTTP. What a receiver answered to an attempt that failed: {status, headers, body}, cut.
alter table todoku_attempt add column response text;
-- Its message, too: a delivery that succeeded in the end is not there any more, and people ask what it went through.
alter table todoku_attempt add column message_seq integer;
-- Requests as people list them: by when they were made, delivered, or died. Nothing but requests is in these indexes.
create index todoku_message_http on todoku_message (id) where topic in ('http.request', 'http.callback');
create index todoku_history_http on todoku_history (finished_at, delivery_id)
    where substr(queue || ':', 1, 5) in ('http:', 'flow:');
create index todoku_delivery_died on todoku_delivery (updated_at, id)
    where status = 'aborted' and substr(queue || ':', 1, 5) in ('http:', 'flow:');

-- Queues and flow keys that are made over HTTP. spec: what was said of them that no other column holds.
alter table todoku_queue add column created_at integer;
alter table todoku_queue add column spec text;

-- URL groups: what is published to one goes to each of its endpoints, with these headers unless the message has them.
create table todoku_group (
    name       text primary key,
    headers    text,
    created_at integer not null,
    updated_at integer not null
) strict, without rowid;
-- An endpoint belongs to a group, or was registered by itself. One that is disabled is sent nothing.
alter table todoku_endpoint add column group_name text;
alter table todoku_endpoint add column name text;
alter table todoku_endpoint add column reason text;
alter table todoku_endpoint add column created_at integer;
create unique index todoku_endpoint_place on todoku_endpoint (group_name, url);

alter table todoku_api_key add column last_used_at integer;

-- Secrets that todoku keeps itself: signing keys, and what sources sign with. Sealed by a master key where there is one.
create table todoku_secret (
    id            text primary key,
    name          text not null,
    value         blob not null,
    master_key_id text,
    created_at    integer not null,
    expires_at    integer not null default 9223372036854775807
) strict, without rowid;
create index todoku_secret_name on todoku_secret (name);

-- Alerts that somebody is told about: one row for each sink. tries: the token of whoever sets out to tell it.
create table todoku_alert (
    name      text not null,
    sink      text not null,
    since     integer not null,
    seen_at   integer not null,
    next_at   integer not null,
    told_at   integer,
    ended     integer not null default 0,
    tries     integer not null default 0,
    value     real not null,
    threshold real not null,
    primary key (name, sink)
) strict, without rowid;
