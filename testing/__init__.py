"""What groundplane is tried on: real clusters. Not part of the product, importable beside it."""
