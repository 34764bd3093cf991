"""Measurement: interleaved runs, intervals, result files, tables and pictures."""
