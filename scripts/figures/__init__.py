"""The figures that the docs quote, written from docs/benchmarks: a module for each kind."""
