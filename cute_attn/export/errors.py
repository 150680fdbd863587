"""`BundleError`: why a bundle cannot be written, read or run."""

from __future__ import annotations


class BundleError(ValueError):
    """A bundle cannot be written, is damaged, or has no code for what is asked."""
