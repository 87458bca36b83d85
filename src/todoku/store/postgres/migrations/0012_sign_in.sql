-- People who sign in to the dashboard with a password, and the sessions of their browsers.
create table todoku_user (
    name       text primary key,
    hash       text not null,
    role       text not null,
    disabled   boolean not null default false,
    created_at timestamptz not null,
    changed_at timestamptz not null
);
-- hash: of the session's id, which only the browser has. kind: user, token, setting (the token of the settings) or oidc;
-- subject: the user's name, the token's id, the hash of the token of the settings, or the provider's subject.
create table todoku_session (
    hash       text primary key,
    kind       text not null,
    subject    text not null,
    name       text not null,
    role       text not null,
    csrf       text not null,
    created_at timestamptz not null,
    seen_at    timestamptz not null,
    expires_at timestamptz not null
);
create index todoku_session_subject on todoku_session (kind, subject);
create index todoku_session_expires on todoku_session (expires_at);
