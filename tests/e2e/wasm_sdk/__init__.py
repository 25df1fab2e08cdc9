"""Filters built by the SDK."""
