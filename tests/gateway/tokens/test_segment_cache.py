from __future__ import annotations

import threading

from gateway.tokens.segment_cache import ENTRY_OVERHEAD_BYTES, EncodedSegment, SegmentCache
from parsers.base import Segment


def entry(number: int = 1) -> EncodedSegment:
    return EncodedSegment(number.to_bytes(4, "little"), str(number).encode())


def known(cache: SegmentCache, *texts: str) -> list[bool]:
    return [found is not None for found in cache.find([Segment(text, False) for text in texts])]


def test_what_was_put_is_found() -> None:
    cache = SegmentCache(10_000)
    cache.put("a", entry(1))
    assert cache.find([Segment("a", False), Segment("b", False)]) == [entry(1), None]
    assert (cache.hits, cache.misses) == (1, 1)


def test_the_same_text_as_control_is_another_segment() -> None:
    cache = SegmentCache(10_000)
    cache.put("<|open|>", entry(1))
    cache.pin("<|open|>", entry(2))
    assert cache.find([Segment("<|open|>", False), Segment("<|open|>", True)]) == [entry(1), entry(2)]


def test_it_stays_within_its_bytes() -> None:
    cache = SegmentCache(20 * ENTRY_OVERHEAD_BYTES)
    for number in range(200):
        cache.put(f"text {number}", entry(number))
        assert 0 < cache.bytes_used <= cache.max_bytes
    assert 10 < len(cache) < 20
    assert known(cache, "text 199", "text 0") == [True, False]


def test_what_was_used_last_stays_longest() -> None:
    cache = SegmentCache(20 * ENTRY_OVERHEAD_BYTES)
    for number in range(200):
        cache.put(f"text {number}", entry(number))
        assert known(cache, "text 0") == [True]


def test_a_text_is_kept_once() -> None:
    cache = SegmentCache(10_000)
    cache.put("a", entry(1))
    used = cache.bytes_used
    cache.put("a", entry(1))
    assert (len(cache), cache.bytes_used) == (1, used)


def test_one_text_cannot_fill_it() -> None:
    cache = SegmentCache(10_000)
    cache.put("x" * 3_000, entry())
    assert len(cache) == 0


def test_nothing_is_lost_or_double_counted_between_threads() -> None:
    cache = SegmentCache(50 * ENTRY_OVERHEAD_BYTES)

    def work(seed: int) -> None:
        for number in range(2_000):
            text = f"text {(number * seed) % 97}"
            cache.put(text, entry())
            cache.find([Segment(text, False)])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sum(cache._size(text, kept) for text, kept in cache._entries.items())
    assert cache.bytes_used == expected <= cache.max_bytes


def test_it_says_how_full_it_is() -> None:
    assert repr(SegmentCache(100)) == "<SegmentCache 0 segments, 0 of 100 bytes>"
