"""Lower bounds of an all-reduce: bytes on the wire, bytes through memory."""


def allreduce_bytes(n, size):
    """Bytes that each rank must send to all-reduce n float32."""
    return 2 * (size - 1) / size * 4 * n


def scalecom_bytes(n, chunk, size):
    """Bytes sent per rank in a ScaleCom step, the mean over leaders: chunk positions once, values twice."""
    k = -(-n // chunk)
    return (size - 1) / size * k * (1 if chunk <= 256 else 2) + allreduce_bytes(k, size)


def memory_bytes(n, chunk, size):
    """Bytes all ranks together must move in a ScaleCom step, however it is written.

    Every rank reads memory and gradient and writes memory (a leader can select in the same pass); to gather, it
    touches a cache line of 64 bytes in each of the two for every chunk.
    """
    return 12 * n * size + 2 * 64 * -(-n // chunk) * size


def wire_seconds(n, chunk, size, bits):
    """The wire's share of a ScaleCom step: positions from one to all (pipelined), then the values."""
    k = -(-n // chunk)
    return 8 * (k * (1 if chunk <= 256 else 2) + allreduce_bytes(k, size)) / bits
