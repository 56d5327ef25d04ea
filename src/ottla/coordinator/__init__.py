"""Coordinators: replicated state machines over internal topics. Decide, replay, append, respond."""
