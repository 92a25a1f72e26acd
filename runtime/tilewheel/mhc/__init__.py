"""Manifold-constrained hyper-connections (mHC): four residual streams and how they mix."""

from tilewheel.mhc.post import post_fwd
from tilewheel.mhc.pre import pre_big_fuse_fwd

__all__ = ["post_fwd", "pre_big_fuse_fwd"]
