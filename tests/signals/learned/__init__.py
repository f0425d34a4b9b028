"""Tests of signals.learned."""
