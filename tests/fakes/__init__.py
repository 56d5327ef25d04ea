"""Fakes, never mocks: small real implementations for tests."""
