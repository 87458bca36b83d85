-- The audit.

-- name: audit
-- Append-only, in the transaction of the act it records.
insert into todoku_audit (at, by, action, target, why)
select :now, :by, :action, value, :why from json_each(:targets)

-- name: audit_page
-- Only reads, by number downwards. A selective filter reads the remaining rows: acts of operators are few.
select id, at / 1e6, by, action, target, why from todoku_audit
 where (:before is null or id < :before)
   and (:by is null or by = :by)
   and (:action is null or action = :action)
   and (:target is null or target = :target)
 order by id desc limit :most
