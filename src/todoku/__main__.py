"""`python -m todoku` is the same program as `todoku`."""

from todoku.cli.main import main

main()
