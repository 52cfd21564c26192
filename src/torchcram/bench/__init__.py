"""Timings of ours against baselines, both in one run."""
