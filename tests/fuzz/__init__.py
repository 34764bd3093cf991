"""Fuzzing of everything that parses: targets, seeds, and the mutations that make other files of them."""
