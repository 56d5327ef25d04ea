"""What bytes in a partition mean."""
