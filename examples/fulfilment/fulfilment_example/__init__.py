"""Orders that are charged, approved, picked and shipped, or undone: a workflow on todoku."""
