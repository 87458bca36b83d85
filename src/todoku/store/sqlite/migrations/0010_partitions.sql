-- Only PostgreSQL has partitions: nothing to do, but both databases count the same versions.
select 1;
