"""What a partition promises its readers and writers."""
