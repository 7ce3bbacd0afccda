"""Proposers, and the loop that tries what they propose."""
