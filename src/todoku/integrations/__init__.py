"""todoku in web frameworks: one module per framework, imported only if the framework is installed."""
