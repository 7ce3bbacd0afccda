"""Frames between parent and child."""

import json
import os
import struct
import threading

import numpy as np
import pytest

from autoresearch.core.channel import Channel, ChannelBroken


@pytest.fixture
def pipes():
    """(sender, receiver, raw descriptor that the receiver reads from); seals are the test's business."""
    down, up = os.pipe(), os.pipe()
    sender, receiver = Channel(up[0], down[1]), Channel(down[0], up[1])
    yield sender, receiver, down[1]
    for channel in (sender, receiver):
        channel.close_sending()
        channel.close_receiving()


def frame(header: object) -> bytes:
    data = json.dumps(header).encode()
    return struct.pack(">Q", len(data)) + data


def test_messages_and_arrays_arrive_as_they_were(pipes):
    sender, receiver, _ = pipes
    arrays = {
        "rows": np.arange(12, dtype=np.uint16).reshape(3, 4)[:, ::2],
        "wide": np.array([[1.5, -0.0]], np.float64),
        "none": np.zeros((0, 5), np.int32),
        "one": np.array(7, np.int64),
    }
    sender.send({"event": "x", "text": "größer 東京"}, arrays)
    sender.send({"event": "y"})
    message, got = receiver.receive()
    assert message == {"event": "x", "text": "größer 東京"}
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        np.testing.assert_array_equal(got[name], array)
    assert receiver.receive() == ({"event": "y"}, {})


def test_an_array_larger_than_the_pipe(pipes):
    sender, receiver, _ = pipes
    rows = np.arange(500_000, dtype=np.int32)
    thread = threading.Thread(target=sender.send, args=({}, {"rows": rows}))
    thread.start()
    np.testing.assert_array_equal(receiver.receive()[1]["rows"], rows)
    thread.join()


def test_writes_of_several_threads_do_not_mix(pipes):
    sender, receiver, _ = pipes
    threads = [threading.Thread(target=sender.send, args=({"n": n, "pad": "x" * 9000},)) for n in range(20)]
    for thread in threads:
        thread.start()
    assert sorted(receiver.receive()[0]["n"] for _ in threads) == list(range(20))
    for thread in threads:
        thread.join()


def test_nan_is_refused_where_it_is_sent(pipes):
    with pytest.raises(ValueError, match="JSON compliant"):
        pipes[0].send({"val_bpb": float("nan")})


def test_the_end_of_the_other_side_is_the_end_of_file(pipes):
    sender, receiver, raw = pipes
    os.write(raw, struct.pack(">Q", 100) + b"half a frame")
    sender.close_sending()
    with pytest.raises(EOFError):
        receiver.receive()


@pytest.mark.parametrize(
    "data",
    [
        b"val_bpb: 0.1 " * 10,
        struct.pack(">Q", 2**63),
        struct.pack(">Q", 5) + b"\xff\xfe{}[",
        struct.pack(">Q", 200_000) + b"[" * 200_000,
        frame([]),
        frame({"seal": "", "message": {}}),
        frame({"seal": "", "message": 3, "arrays": {}}),
        frame({"seal": 5, "message": {}, "arrays": {}}),
        frame({"seal": "", "message": {}, "arrays": {"a": {"dtype": "O", "shape": [0]}}}),
        frame({"seal": "", "message": {}, "arrays": {"a": {"dtype": "no type", "shape": [1]}}}),
        frame({"seal": "", "message": {}, "arrays": {"a": {"dtype": "<i4", "shape": ["x"]}}}),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_no_frame_breaks_the_channel(pipes, data):
    _, receiver, raw = pipes
    writer = threading.Thread(target=os.write, args=(raw, data))
    writer.start()
    with pytest.raises(ChannelBroken):
        receiver.receive()
    writer.join()


def test_a_frame_without_the_seal_is_refused():
    read, write = os.pipe()
    receiver, sender = Channel(os.dup(read), os.dup(write), expected="s3cret"), Channel(read, write)
    try:
        sender.seal = "s3cret"
        sender.send({"event": "result"})
        assert receiver.receive()[0] == {"event": "result"}
        for forged in ("", "s3cre", "s3cret ", "\ud800"):
            sender.seal = forged
            sender.send({"event": "result", "val_bpb": 0.1})
            with pytest.raises(ChannelBroken):
                receiver.receive()
    finally:
        for channel in (receiver, sender):
            channel.close_sending()
            channel.close_receiving()
