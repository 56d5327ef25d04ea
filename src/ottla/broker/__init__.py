"""The asyncio shell around everything below it."""
