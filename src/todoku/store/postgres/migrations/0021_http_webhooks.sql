-- Webhooks of workflow runs over HTTP: URLs that anybody who knows them may request. Only the digest of the secret part is
-- here. `origin` is the scheme and host that the run was told.
create table todoku_http_webhook (
    digest     text primary key,
    run_id     text not null,
    origin     text not null,
    created_at timestamptz not null default todoku_now()
);
create index todoku_http_webhook_run on todoku_http_webhook (run_id);
