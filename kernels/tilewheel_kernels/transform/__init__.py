"""Positions, layouts and other transforms of activations."""
