"""Benchmarks. Each prints ratios against a peer or a limit that was measured in the same run; none is a test."""
