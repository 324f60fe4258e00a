"""TCP proxy in front of the server, which cuts its connections or stops forwarding on them, as a network does."""

import asyncio
import socket
import struct
import time

CHUNK_BYTES = 1 << 16


class Pair:
    """One connection of a client, and the one to the server."""

    def __init__(self, client, server):
        self.client, self.server = client, server
        self.flows = asyncio.Event()
        self.flows.set()


class Proxy:
    """Proxy of one client. A black hole keeps connections open, and what arrives on them stays where it is."""

    def __init__(self, server_port):
        self.server_port = server_port
        self.pairs = set()
        # Times of the connections of the client.
        self.accepted = []
        self.is_hole = False

    async def start(self):
        self.listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]

    def blackhole(self, new_too):
        """Stops forwarding on open connections, and with `new_too` on those that are opened until `restore`."""
        self.is_hole = new_too
        for pair in self.pairs:
            pair.flows.clear()

    def restore(self):
        """Forwards again, also what black-holed connections have held back."""
        self.is_hole = False
        for pair in self.pairs:
            pair.flows.set()

    def cut(self):
        """Breaks all connections."""
        for pair in list(self.pairs):
            self._close(pair)

    @staticmethod
    def _close(pair):
        for writer in (pair.client, pair.server):
            if writer is not None and not writer.is_closing():
                # A reset, as of a process that was killed.
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        pair.flows.set()

    async def _accept(self, reader, writer):
        pair = Pair(writer, None)
        self.pairs.add(pair)
        self.accepted.append(time.monotonic())
        if self.is_hole:
            pair.flows.clear()
        try:
            await pair.flows.wait()
            from_server, pair.server = await asyncio.open_connection("127.0.0.1", self.server_port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(pair, reader, pair.server))
                tasks.create_task(self._forward(pair, from_server, writer))
        except* (OSError, asyncio.CancelledError):
            # One side has closed the connection, or the run is over.
            pass
        finally:
            self.pairs.discard(pair)
            self._close(pair)

    @staticmethod
    async def _forward(pair, reader, writer):
        while data := await reader.read(CHUNK_BYTES):
            await pair.flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("the other end has closed the connection")
