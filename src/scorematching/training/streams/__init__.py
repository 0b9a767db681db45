"""Points in files larger than memory: ``.npy``, csv and parquet, read in blocks while training.

A file is cut into blocks (row groups of parquet, about a megabyte of others). In every epoch the
blocks are put into a random order and read several at a time; the rows of such a *window* are
shuffled among each other. So every row is seen once in an epoch, a batch is a random sample of a
window, and a window holds random blocks.

That is weaker than shuffling all rows if blocks differ, as in a sorted file. For a number f(x) of
variance ``w`` within blocks and ``b`` between their means, the mean of f over a batch of n rows has
a variance of about ``w / n + b / k`` for windows of k blocks, and ``(w + b) / n`` if all rows were
shuffled. Where b is not small, write the file in random order once, or give windows more memory.
"""

from scorematching.training.streams.opening import open_stream
from scorematching.training.streams.stream import Moments, Stream

__all__ = ["Moments", "Stream", "open_stream"]
