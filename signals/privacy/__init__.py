"""Consent, redaction, deletion, and what reports may show: docs/privacy.md."""
