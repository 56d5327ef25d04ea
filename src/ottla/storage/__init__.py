"""Bytes on this machine's disk."""
