"""Handlers, one module per API family; each opens with its versions and its gaps."""
