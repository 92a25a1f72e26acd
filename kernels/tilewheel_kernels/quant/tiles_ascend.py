"""Tiles of rows for the quantisation kernels on Ascend.

A block (vector core) owns every num_vec_cores-th tile, a tile being up to block_rows rows by up to
block_channels channels. Rows wider than that are cut into equal parts, and tiles have fewer rows
where there would not be two for each core: a few tokens spread over all cores.
"""

import tilelang.ascend.language as T

LANES = 64  # 32-bit lanes of a vector register
STEP = 256  # channels of one pass: a register of bytes
GROUP = 32  # channels that share a scale
COL_MAJOR_ROWS = 16  # a column of scales in a tile: 32 bytes or more


class Tiles:
    """Sizes of a variant, and the place of each tile as TileLang expressions."""

    def __init__(self, *, block_rows: int, block_channels: int) -> None:
        self.block_rows = block_rows
        self.block_channels = block_channels
        self.block_groups = block_channels // GROUP
        self.num_tokens = T.dynamic("num_tokens")
        self.hidden_64 = T.dynamic("hidden_64")
        self.hidden = self.hidden_64 * 64

    @classmethod
    def for_sf(cls, *, col_major: bool) -> "Tiles":
        """Return tiles of 16384 channels: taller ones where sf is stored by columns."""
        if col_major:
            return cls(block_rows=COL_MAJOR_ROWS, block_channels=1024)
        return cls(block_rows=8, block_channels=2048)

    def sf_block(self, dtype: str, *, col_major: bool) -> tuple[int, int]:
        """Return the shape of a tile's scales."""
        num_words = self.block_groups // (2 if dtype == "int16" else 1)
        return (num_words, self.block_rows) if col_major else (self.block_rows, num_words)

    def width(self, dtype: str):
        """Elements of a row; int8 holds two values each."""
        return self.hidden_64 * 32 if dtype == "int8" else self.hidden

    def strided(self, name: str, dtype: str):
        """Return the annotation of a tensor to read, called ``name``."""
        # int64, because TVM would compute row * stride in 32 bits.
        strides = (T.dynamic(f"{name}_stride", "int64"), 1)
        return T.StridedTensor((self.num_tokens, self.width(dtype)), strides, dtype)

    def dense(self, dtype: str):
        """Return the annotation of a tensor to write."""
        return T.Tensor((self.num_tokens, self.width(dtype)), dtype)

    def sf(self, dtype: str, *, col_major: bool):
        """Return the annotation of sf, transposed where it is column-major."""
        num_words = self.hidden_64 * (1 if dtype == "int16" else 2)
        if col_major:
            strides = (T.dynamic("sf_stride", "int64"), 1)
            return T.StridedTensor((num_words, self.num_tokens), strides, dtype)
        return T.Tensor((self.num_tokens, num_words), dtype)

    def balanced_rows(self, num_parts, num_vec_cores):
        """Rows of a tile that give each core two tiles."""
        halves = 2 * num_vec_cores
        return T.truncdiv(self.num_tokens * num_parts + halves - 1, halves)

    def count(self, num_parts, tile_rows, core, num_vec_cores):
        """Tiles of a core."""
        num_tiles = T.truncdiv(self.num_tokens + tile_rows - 1, tile_rows) * num_parts
        return T.truncdiv(num_tiles - core + num_vec_cores - 1, num_vec_cores)


@T.macro
def plan(tiles, num_vec_cores):  # type: ignore[no-untyped-def]
    """Return variables: parts of a row, channels of each but the last, rows of a tile.

    In variables, because TileLang would write the quotients out at each use. Few, and nothing else
    has a name, because its scheduler gives up on the order of ten scalar statements.
    """
    num_parts = T.alloc_var(T.int32)
    part_channels = T.alloc_var(T.int32)
    tile_rows = T.alloc_var(T.int32)
    num_parts = T.truncdiv(tiles.hidden + (tiles.block_channels - 1), tiles.block_channels)
    part_channels = T.truncdiv(tiles.hidden_64 + 4 * num_parts - 1, 4 * num_parts) * STEP
    tile_rows = T.max(1, T.min(tiles.balanced_rows(num_parts, num_vec_cores), tiles.block_rows))
    return num_parts, part_channels, tile_rows


@T.macro
def place(tiles, tile, num_parts, part_channels, tile_rows):  # type: ignore[no-untyped-def]
    """Return row (int64), number of rows, channel and number of channels of a tile."""
    block = T.alloc_var(T.int32)
    num_rows = T.alloc_var(T.int32)
    channel = T.alloc_var(T.int32)
    num_channels = T.alloc_var(T.int32)
    block = T.truncdiv(tile, num_parts)
    num_rows = T.min(tile_rows, tiles.num_tokens - block * tile_rows)
    channel = (tile - block * num_parts) * part_channels
    num_channels = T.min(part_channels, tiles.hidden - channel)
    return T.cast(block * tile_rows, "int64"), num_rows, channel, num_channels


def whole(buffer, access: str):
    """Return the address of a UB buffer whose every element a gather or scatter may touch.

    Write it where it is used: bound to a name, it is no address any more.
    """
    return T.access_ptr(buffer[0, 0], access, extent=buffer.shape[0] * buffer.shape[1])
