"""Small byte streams: entropy-coded bytes, packed two-bit symbols, and numbers of any size.

Every reader is told how much to expect and raises `BadStream` for anything else, before it
allocates more than that. Shape letter: N = values.
"""

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

POWERS_OF_TWO = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))
LARGEST_NUMBER_SYMBOL = 251
# Searching for repeats only where seven bytes agree leaves nearly everything to zstd's Huffman
# stage, which is what suits packed symbols; runs of zeros are still found.
WRITER = zstandard.ZstdCompressionParameters(
    format=zstandard.FORMAT_ZSTD1_MAGICLESS,
    strategy=zstandard.STRATEGY_FAST,
    window_log=18,
    hash_log=6,
    min_match=7,
    write_content_size=False,
    write_checksum=False,
)


class BadStream(ValueError):
    """Bytes that are not the stream that was expected."""


class Numbers(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Whole numbers: a symbol each for length and leading bits, and the bits below as they are."""

    symbols: bytes
    low_bits: bytes


def squeeze(data: bytes) -> bytes:
    """Entropy-coded `data`: a zstd frame without magic, size or checksum; empty stays empty."""
    return zstandard.ZstdCompressor(compression_params=WRITER).compress(data) if data else b""


def expand(data: bytes, num_bytes: int) -> bytes:
    """The `num_bytes` that were squeezed; never makes more than that."""
    if not num_bytes:
        if data:
            raise BadStream(f"expected an empty stream, got {len(data)} bytes")
        return b""
    reader = zstandard.ZstdDecompressor(
        format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=1 << WRITER.window_log
    )
    try:
        frame = zstandard.get_frame_parameters(data, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        if frame.content_size != zstandard.CONTENTSIZE_UNKNOWN:
            raise BadStream(f"expected a frame without a size, got one of {frame.content_size}")
        # A frame that states its size would override the limit given here.
        expanded = reader.decompress(data, max_output_size=num_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadStream(f"expected {num_bytes} bytes, got a broken frame: {error}") from error
    if len(expanded) != num_bytes:
        raise BadStream(f"expected {num_bytes} bytes, got {len(expanded)}")
    return expanded


def pack_pairs(symbols_N: NDArray[np.uint8]) -> bytes:
    """Symbols 0 to 3, four to a byte, entropy-coded."""
    padded = np.zeros(-(-symbols_N.size // 4) * 4, np.uint8)
    padded[: symbols_N.size] = symbols_N
    first, second, third, fourth = padded.reshape(-1, 4).T
    return squeeze((first | second << 2 | third << 4 | fourth << 6).tobytes())


def unpack_pairs(data: bytes, count: int) -> NDArray[np.uint8]:
    """The `count` symbols that `pack_pairs` was given."""
    packed = np.frombuffer(expand(data, -(-count // 4)), np.uint8)
    quads = np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    return quads.reshape(-1)[:count]


def write_numbers(numbers_N: NDArray[np.uint64]) -> Numbers:
    """Below 8 the number is its symbol; else bit length and the two bits below the leading one."""
    lengths_N = np.searchsorted(POWERS_OF_TWO, numbers_N, side="right").astype(np.uint64)
    cut_N = np.where(lengths_N >= 4, lengths_N - np.uint64(3), np.uint64(0))
    head_N = (numbers_N >> cut_N).astype(np.uint8)  # < 8; at least 4 where anything is cut off
    symbols_N = np.where(cut_N > 0, cut_N * 4 + head_N, head_N).astype(np.uint8)
    bits = [
        np.unpackbits(
            numbers_N[cut_N == cut].astype("<u8").view(np.uint8).reshape(-1, 8),
            axis=1, bitorder="little", count=int(cut),
        ).reshape(-1)
        for cut in np.unique(cut_N[cut_N > 0])
    ]  # fmt: skip
    low_bits = np.packbits(np.concatenate(bits), bitorder="little").tobytes() if bits else b""
    return Numbers(squeeze(symbols_N.tobytes()), low_bits)


def read_numbers(stream: Numbers, count: int) -> NDArray[np.uint64]:
    """The `count` numbers that `write_numbers` was given."""
    symbols_N = np.frombuffer(expand(stream.symbols, count), np.uint8)
    if count and symbols_N.max() > LARGEST_NUMBER_SYMBOL:
        raise BadStream(f"expected symbols up to {LARGEST_NUMBER_SYMBOL}, got {symbols_N.max()}")
    cut_N = np.where(symbols_N >= 8, symbols_N // 4 - 1, 0).astype(np.uint64)
    head_N = np.where(symbols_N >= 8, symbols_N % 4 + 4, symbols_N).astype(np.uint64)
    numbers_N = head_N << cut_N
    num_bits = int(cut_N.sum())
    if len(stream.low_bits) != -(-num_bits // 8):
        raise BadStream(f"expected {num_bits} low bits, got {len(stream.low_bits)} bytes")
    bits = np.unpackbits(np.frombuffer(stream.low_bits, np.uint8), bitorder="little")
    start = 0
    for cut in np.unique(cut_N[cut_N > 0]):
        here = np.flatnonzero(cut_N == cut)
        end = start + here.size * int(cut)
        numbers_N[here] |= _from_bits(bits[start:end].reshape(here.size, int(cut)))
        start = end
    return numbers_N


def _from_bits(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Rows of bits, lowest first, as numbers."""
    whole = np.zeros((len(bits), 8), np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    whole[:, : packed.shape[1]] = packed
    return whole.view("<u8").reshape(-1)
