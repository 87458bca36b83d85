"""The chapter's exercises, solved. Each runs by itself, and needs no broker: `python -m shop_example.exercises failing`."""
