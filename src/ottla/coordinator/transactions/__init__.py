"""Transactions of producers, kept in `__transaction_state`, and the markers that end them."""
