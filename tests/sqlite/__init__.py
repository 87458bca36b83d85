"""What only SQLite has: one library, one writer thread, a journal chosen by the build."""
