"""The release's version: 0.<runtime ABI>.<release>.

The one source of it. A runtime and artifacts of the same second number work together; it changes
when ``manifest.RUNTIME_ABI`` does.
"""

VERSION = "0.1.0"
