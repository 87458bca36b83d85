-- The audit.

-- name: audit
-- Append-only, in the transaction of the act it records.
insert into todoku_audit (at, by, action, target, why)
select todoku_now(), :by, :action, target, :why from unnest(:targets::text[]) as s(target)

-- name: audit_page
-- Only reads, by number downwards. A selective filter reads the remaining rows: acts of operators are few.
select id, date_part('epoch', at), by, action, target, why from todoku_audit
 where (:before::bigint is null or id < :before)
   and (:by::text is null or by = :by)
   and (:action::text is null or action = :action)
   and (:target::text is null or target = :target)
 order by id desc limit :most
