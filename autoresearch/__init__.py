"""A search for better GPT training code, the same on every accelerator."""

__version__ = "0.1.0"
