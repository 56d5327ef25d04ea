"""One module per API family; each opens with what it does and does not do."""
