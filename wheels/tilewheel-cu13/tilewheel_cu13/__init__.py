"""Artifacts of tilewheel for the backend `cuda`, which the loader finds by their manifest."""
