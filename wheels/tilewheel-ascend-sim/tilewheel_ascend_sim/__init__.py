"""Artifacts of tilewheel for the backend `ascend-sim`, which the loader finds by their manifest."""
