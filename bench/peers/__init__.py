"""The peers of `make bench`: what each is, how it is installed, and a program of each. Docs: bench/peers/program.py."""
