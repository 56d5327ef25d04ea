"""Who exists, and who leads."""
