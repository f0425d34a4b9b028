"""An example editor integration: inline suggestions by Tendril, and what became of them."""
