"""A plugin of the run of kafka-python's tests: all codecs, so that none of their tests is skipped."""

from compat.lent_codecs import lend_codecs

lend_codecs()
