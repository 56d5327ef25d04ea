"""Found by Spark on the module path: what makes `format(\"ottla\")` known without a call."""
