"""Messages between the parent and the child: frames of JSON, each with NumPy arrays as raw bytes, over two pipes.

The child's standard output is a log and nothing else, so nothing that a candidate prints is ever read as a result.
Nor is what it writes to the descriptor of the pipe: every frame of the child carries a seal that the parent chose.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import struct
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct(">Q")
_MAX_HEADER = 64 * 2**20

Message = tuple[dict[str, Any], dict[str, NDArray[Any]]]


class ChannelBroken(Exception):
    """The bytes on the pipe are not a frame."""


class Channel:
    """Two ends of a pair of pipes.

    Args:
        read_fd: receives frames.
        write_fd: sends frames; writes of several threads do not mix.
        expected: the seal that every frame received must carry; "" for none.
    """

    def __init__(self, read_fd: int, write_fd: int, expected: str = "") -> None:
        self._reader = os.fdopen(read_fd, "rb", buffering=2**16)
        self._writer = os.fdopen(write_fd, "wb", buffering=0)
        self._lock = threading.Lock()
        self._expected = expected
        self.seal = ""
        """Sent with every frame."""

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Send a JSON object and arrays of any numeric type.

        Raises:
            OSError: the other side is gone.
            ValueError: the message holds NaN or infinity, which JSON can't.
        """
        arrays = arrays or {}
        shapes = {name: {"dtype": a.dtype.str, "shape": a.shape} for name, a in arrays.items()}
        frame = {"seal": self.seal, "message": dict(message), "arrays": shapes}
        header = json.dumps(frame, allow_nan=False).encode()
        with self._lock:
            for part in (memoryview(_LENGTH.pack(len(header)) + header), *map(_raw, arrays.values())):
                view = part
                while view:
                    view = view[self._writer.write(view) :]

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def receive(self) -> Message:
        """The next message, with its arrays by name.

        Raises:
            EOFError: the other side is gone.
            ChannelBroken: what came is not a frame.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _MAX_HEADER:
            raise ChannelBroken(f"a frame of {length} bytes")
        try:
            header = json.loads(self._read(length))
            if not hmac.compare_digest(header["seal"].encode(), self._expected.encode()):
                raise ChannelBroken("a frame without the seal")
            message = dict(header["message"])
            arrays = {}
            for name, spec in header["arrays"].items():
                dtype, shape = np.dtype(spec["dtype"]), tuple(int(n) for n in spec["shape"])
                arrays[name] = np.frombuffer(self._read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ChannelBroken(f"not a frame: {error}") from error
        return message, arrays

    def close_sending(self) -> None:
        """Close the end that sends; the other side sees the end of file."""
        self._writer.close()

    def close_receiving(self) -> None:
        """Close the end that receives: by the thread that receives, or it would wait for it."""
        self._reader.close()


def _raw(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
