"""Tests of promises about several processes."""
