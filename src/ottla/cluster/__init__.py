"""The cluster's metadata: its image, decisions on it, and the coordination store."""
