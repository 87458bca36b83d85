"""Django migrations: the first one creates todoku's schema; todoku's own migrations keep it up to date."""
