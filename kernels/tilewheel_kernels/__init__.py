"""TileLang kernels, one operator each, its backends side by side."""
