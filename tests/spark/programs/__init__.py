"""Programs of users, each in a process of its own; each prints what it found as JSON."""
