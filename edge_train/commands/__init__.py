"""Subcommands of ``edge-train`` that are more than a call."""
