"""The command line: information about the build, parity checks, and benchmarks."""
