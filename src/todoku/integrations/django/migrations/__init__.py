"""Django's migrations of todoku: the first makes the schema, todoku's own migrations keep it up to date."""
