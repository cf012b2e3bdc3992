"""The figures in the docs, written from docs/benchmarks: a module for each kind."""
