"""How to ask a broker something."""
