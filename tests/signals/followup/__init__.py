"""Tests of signals.followup."""
