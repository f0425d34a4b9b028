"""Tendril: serve a language model, learn from what its users do next, ship the better weights."""

__version__ = "0.1.0"
