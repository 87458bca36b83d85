"""The chapter's exercises, solved. Each runs alone, without a broker: `python -m shop_example.exercises failing`."""
