"""SQLite: the database, its connections, its migrations, and the store's queries in its SQL.

In the `.sql` files `:name` is a bound parameter; lists and documents are JSON text; `:now` is in microseconds. A block
may have several statements, of which one returns rows. All of them run in one BEGIN IMMEDIATE: there is one writer, so
the rows a statement has read do not change before the next one. "As PostgreSQL" means: the same contract.
"""
