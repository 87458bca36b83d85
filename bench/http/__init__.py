"""HTTP measured: what comes in, and what goes out, each beside the bare thing."""
