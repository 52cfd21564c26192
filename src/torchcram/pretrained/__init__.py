"""Pretrained language models: how to load them, and what their attention is worth. Needs transformers."""
