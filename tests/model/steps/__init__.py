"""The steps of the protocol, one file for each paragraph of DESIGN §4."""
