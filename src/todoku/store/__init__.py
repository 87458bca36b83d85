"""One port, two backends. SQL is readable as SQL, in `.sql` files."""
