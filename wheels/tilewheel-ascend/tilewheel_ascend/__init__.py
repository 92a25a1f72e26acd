"""Artifacts of tilewheel for the backend `ascend`, which the loader finds by their manifest."""
