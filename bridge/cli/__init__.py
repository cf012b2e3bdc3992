"""The command line: what this build is, whether it is right, and how fast it is."""
