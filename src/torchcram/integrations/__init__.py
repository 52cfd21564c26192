"""Thin adapters for other libraries; none of them is imported."""
