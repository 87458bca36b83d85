"""PostgreSQL: the database, its connections, its migrations, and the store's queries in its SQL.

In the `.sql` files `:name` is a bound parameter; lists are arrays; `todoku_now()` is the database's clock. The shape of
a query fixes its plan (tests/plans): a lateral with a limit, or `offset 0`, stays an index probe, where a join could
become a scan of the whole table as soon as statistics are stale.
"""
