"""Tests of the ops of vision models."""
