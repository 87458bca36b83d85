"""SQLite: the database, its connections, its migrations, and the store's queries in its SQL.

In the `.sql` files `:name` is bound; lists and documents are JSON text; `:now` is microseconds. A block may be several
statements, of which one returns rows. All of them run in one BEGIN IMMEDIATE: there is one writer, so whatever a
statement saw still holds for the next one. "As PostgreSQL" means: the same contract.
"""
