-- The example's own tables, beside todoku's, and the seed's job_queue as a view. Nothing is done that is done already.
begin immediate;

create table if not exists users (
    id               integer primary key autoincrement,
    name             text not null,
    email            text not null unique,
    additional_props text not null default '{}',
    created_at       text not null default current_timestamp
) strict;

create table if not exists profiles (
    user_id    integer primary key references users (id),
    hobby      text,
    location   text,
    score      real,
    created_at text not null default current_timestamp
) strict;

-- The sign-up metric: how many a day.
create table if not exists signups (
    day    text primary key,
    number integer not null
) strict;

-- Who has been written to by which job: a retry writes only to who is missing.
create table if not exists mail_log (
    job_id    integer not null,
    recipient text not null,
    state     text not null check (state in ('sent', 'refused')),
    detail    text,
    at        text not null default current_timestamp,
    primary key (job_id, recipient)
) strict, without rowid;

-- What todoku's history does not keep of a finished job, and the seed's columns want.
create table if not exists job_runs (
    job_id      integer primary key,
    priority    integer not null,
    max_retries integer not null,
    started_at  text not null
) strict;

-- todoku keeps what is not done, and dead letters, in todoku_delivery, and what is done in todoku_history.
create view if not exists job_queue as
select delivery.id,
       delivery.destination as job_type,
       coalesce(json_extract(message.payload, '$.payload'), message.payload) as payload,
       case delivery.status when 'sending' then 'processing' when 'aborted' then 'failed' else 'pending' end as status,
       delivery.priority,
       delivery.max_attempts - 1 as max_retries,
       case when delivery.status in ('sending', 'aborted') then max(delivery.attempts - 1, 0)
            else min(delivery.attempts, delivery.max_attempts - 1) end as retry_count,
       coalesce(delivery.error, delivery.reason) as error_message,
       datetime(delivery.next_run_at / 1000000, 'unixepoch') as scheduled_at,
       datetime(delivery.claimed_at / 1000000, 'unixepoch') as started_at,
       case delivery.status when 'aborted'
            then datetime(delivery.updated_at / 1000000, 'unixepoch') end as completed_at,
       datetime(message.created_at / 1000000, 'unixepoch') as created_at
  from todoku_delivery as delivery
  join todoku_message as message on message.seq = delivery.message_seq
union all
select history.delivery_id,
       history.destination,
       coalesce(json_extract(message.payload, '$.payload'), message.payload),
       'completed',
       coalesce(run.priority, 0),
       coalesce(run.max_retries, 3),
       max(history.attempts - 1, 0),
       null,
       coalesce(run.started_at, datetime(message.created_at / 1000000, 'unixepoch')),
       run.started_at,
       datetime(history.finished_at / 1000000, 'unixepoch'),
       datetime(message.created_at / 1000000, 'unixepoch')
  from todoku_history as history
  join todoku_message as message on message.seq = history.message_seq
  left join job_runs as run on run.job_id = history.delivery_id;

-- The number of a job by the id of its message, which is what an enqueue returns.
create view if not exists job_numbers as
select message.id as message_id, delivery.id
  from todoku_message as message join todoku_delivery as delivery on delivery.message_seq = message.seq
union all
select message.id, history.delivery_id
  from todoku_message as message join todoku_history as history on history.message_seq = message.seq;

commit;
