"""Consumer groups: members, assignments and committed offsets, kept in `__consumer_offsets`."""
