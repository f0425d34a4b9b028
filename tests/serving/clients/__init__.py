"""Tests of the clients, against fakes over real HTTP and against a serving process."""
