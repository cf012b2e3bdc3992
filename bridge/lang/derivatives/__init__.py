"""Derivatives of programs, which are programs again."""
