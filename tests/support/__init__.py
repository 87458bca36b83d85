"""What tests share: a PostgreSQL server, a world to act in, failures to arrange."""
