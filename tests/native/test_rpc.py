"""A stock RPC peer is refused at the handshake; a hostile one cannot make our server divide by zero.

The protocol's HELLO: the client sends command 14 and its capabilities, the server answers with its version;
the client must leave unless the major version is its own.
"""

import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pylucebox.core.receipts import BuildReceipt

STOCK_MAJOR, OUR_MAJOR = 8, 108
HELLO, GET_ALLOC_SIZE, DEVICE_COUNT = 14, 13, 15
CAPABILITIES = bytes(24)
WAIT_S = 30.0
# rpc_tensor, packed: id, type, buffer, ne[4], nb[4], op, op_params[16], flags, src[10], view_src, view_offs,
# data, name, use_count
TENSOR = struct.Struct("<QIQ4I4II16ii10QQQQ64si")
SOURCES = 10


def receive(peer: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer when the peer closed the connection."""
    data = b""
    with suppress(ConnectionResetError):
        while len(data) < size and (more := peer.recv(size - len(data))):
            data += more
    return data


def send(peer: socket.socket, command: int, payload: bytes = b"") -> None:
    peer.sendall(struct.pack("<BQ", command, len(payload)) + payload)


def answer(peer: socket.socket) -> bytes:
    header = receive(peer, 8)
    return receive(peer, struct.unpack("<Q", header)[0]) if len(header) == 8 else b""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def our_server(build: BuildReceipt, log: Path) -> Iterator[int]:
    port = free_port()
    command = [build.bin_dir / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port), "-d", "CPU"]
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield port
        assert child.poll() is None, log.read_text()
    finally:
        child.kill()
        child.wait()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """Connect, waiting for a server that has just been started, and say HELLO as a stock client does."""
    for _ in range(int(WAIT_S / 0.1)):
        try:
            peer = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.1)
    else:
        pytest.fail("the server does not listen")
    with peer:
        send(peer, HELLO, CAPABILITIES)
        yield peer


def test_stock_client_sees_another_major_version(build: BuildReceipt, tmp_path: Path) -> None:
    with our_server(build, tmp_path / "log") as port, connected(port) as peer:
        assert answer(peer)[0] == OUR_MAJOR != STOCK_MAJOR


def tensor(type_id: int) -> bytes:
    extents, strides = (64, 2, 1, 1), (10, 20, 40, 40)
    return TENSOR.pack(1, type_id, 0, *extents, *strides, *[0] * 31, b"probe", 0)


@pytest.mark.parametrize("type_id", [4, 43, 105, 106, 108, 2**31])
def test_hostile_type_is_refused(build: BuildReceipt, tmp_path: Path, type_id: int) -> None:
    no_sources = bytes(TENSOR.size * SOURCES)
    with our_server(build, tmp_path / "log") as port:
        with connected(port) as peer:
            assert answer(peer)
            send(peer, GET_ALLOC_SIZE, struct.pack("<I", 0) + tensor(type_id) + no_sources)
            assert answer(peer) == b""
        assert "invalid tensor type received" in (tmp_path / "log").read_text()
        with connected(port) as peer:
            assert answer(peer)[0] == OUR_MAJOR
            send(peer, GET_ALLOC_SIZE, struct.pack("<I", 0) + tensor(107) + no_sources)
            assert struct.unpack("<Q", answer(peer))[0] == 40  # 2 rows of 2 blocks of 10 bytes


class Peer(threading.Thread):
    """A server that answers one HELLO with `major` and records the command that follows, if any."""

    def __init__(self, major: int) -> None:
        super().__init__(daemon=True)
        self.major = major
        self.next_command: int | None = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        peer, _ = self.listener.accept()
        with peer, self.listener:
            assert receive(peer, 9)[0] == HELLO
            receive(peer, len(CAPABILITIES))
            peer.sendall(struct.pack("<Q4B", 4 + len(CAPABILITIES), self.major, 0, 0, 0) + CAPABILITIES)
            command = receive(peer, 1)
            self.next_command = command[0] if command else None


def our_client(build: BuildReceipt, major: int) -> tuple[Peer, "subprocess.CompletedProcess[str]"]:
    peer = Peer(major)
    peer.start()
    command = [build.server_path, "--rpc", peer.endpoint, "--list-devices"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL)
    peer.join(WAIT_S)
    return peer, done


def test_our_client_leaves_a_stock_server(build: BuildReceipt) -> None:
    peer, done = our_client(build, STOCK_MAJOR)
    assert peer.next_command is None
    assert done.returncode != 0
    assert f"RPC server version mismatch: {STOCK_MAJOR}.0.0" in done.stdout + done.stderr


def test_our_client_stays_with_our_version(build: BuildReceipt) -> None:
    peer, _ = our_client(build, OUR_MAJOR)
    assert peer.next_command == DEVICE_COUNT
