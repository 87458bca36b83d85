-- Claims by list: while a worker drains a backlog, a claim is one row that names its deliveries, and the deliveries stay as
-- they are (epoch 0, without an owner). Whatever happens to one of them but a success first writes the claim out: the
-- delivery then says by itself that it is being sent, and by which worker.
create table todoku_claim_list (
    id         bigint generated always as identity primary key,
    worker_id  uuid not null,
    ids        bigint[] not null,
    first_id   bigint not null,
    last_id    bigint not null,
    claimed_at timestamptz not null
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0, toast_tuple_target = 8160);
alter table todoku_claim_list alter column ids set storage external;
create index todoku_claim_list_worker on todoku_claim_list (worker_id, claimed_at);

-- A worker of a release that does not know lists would take listed deliveries for free ones.
alter table todoku_worker add column lists boolean not null default false;

-- Which of these deliveries are listed. Volatile: its query has a snapshot of its own, which shows what was committed
-- before the caller got its locks. The caller's own snapshot may be older, and a lock alone makes nobody look again.
create function todoku_listed(wanted bigint[]) returns bigint[] language plpgsql volatile
    set search_path from current as $$
begin
    if wanted = '{}' or not exists (select from todoku_claim_list) then
        return '{}';
    end if;
    return array(
        select listed.id from todoku_claim_list l cross join lateral unnest(l.ids) as listed(id)
          join unnest(wanted) as asked(id) on asked.id = listed.id
         where l.first_id <= (select max(id) from unnest(wanted) as w(id))
           and l.last_id >= (select min(id) from unnest(wanted) as w(id)));
end $$;
