"""PostgreSQL: the database, its connections, its migrations, and the store's queries in its SQL.

In the `.sql` files `:name` is bound; lists are arrays; `todoku_now()` is the database's clock. Plans are pinned by
shape (tests/plans): a lateral with a limit, or `offset 0`, keeps a probe a probe, where a join could become a walk over
a whole table as soon as statistics are stale.
"""
