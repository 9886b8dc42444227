"""One region of memory with every KV block of a worker, and what is known about the blocks in it."""

from __future__ import annotations

import mmap

import numpy as np

from simulator.kv.content import WORD_BYTES, Words


class Arena:
    """`num_blocks` blocks of `block_size` slots, one slot for each token.

    The pages are the system's until something is written to them, so an arena costs what is used of it. All
    writers are in this process (peers only read), hence the arena can say of each block what was written
    there: `sums`, a digest of its bytes once it is full; `ends`, the number (`content`) that its last token
    should have; `wrong`, whether it holds something else than the tokens that it is kept for.
    """

    def __init__(self, num_blocks: int, block_size: int, bytes_per_token: int) -> None:
        if bytes_per_token < WORD_BYTES or bytes_per_token % WORD_BYTES:
            raise ValueError(f"bytes per token must be a multiple of {WORD_BYTES}, not {bytes_per_token}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.block_bytes = block_size * bytes_per_token
        self.nbytes = num_blocks * self.block_bytes
        self._memory = mmap.mmap(-1, self.nbytes)
        words = np.frombuffer(self._memory, dtype=np.uint64)
        self.address: int = words.ctypes.data
        self.blocks: Words = words.reshape(num_blocks, -1)
        self.slots: Words = words.reshape(num_blocks * block_size, -1)
        self.sums = np.zeros(num_blocks, dtype=np.uint64)
        self.ends = np.zeros(num_blocks, dtype=np.uint64)
        self.wrong = np.zeros(num_blocks, dtype=np.bool_)
