"""A plugin for the run of aiokafka's tests: with all codecs there, none of them is skipped."""

from compat.lent_codecs import lend_codecs

lend_codecs()
