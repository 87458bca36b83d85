"""todoku inside the frameworks people use: each in a module of its own, imported only by who has the framework."""
