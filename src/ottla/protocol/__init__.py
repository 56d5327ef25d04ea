"""What bytes on the wire mean."""
