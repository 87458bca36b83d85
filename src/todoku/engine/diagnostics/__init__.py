"""What a person asks: what is there, why it has not run, whether all is well."""
