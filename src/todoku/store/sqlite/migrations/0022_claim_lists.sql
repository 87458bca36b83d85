-- Only PostgreSQL has claims by list: nothing to do, but both databases count the same versions.
select 1;
