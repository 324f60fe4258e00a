"""TCP balancer in front of replicas, as a Service of Kubernetes is: new connections go to ready servers, open ones stay."""

import asyncio
import itertools
import re

PROBE_SECONDS = 0.1
PROBE_TIMEOUT_SECONDS = 1


class Replica:
    """A server behind the balancer: its port, that of its probes, and whether it is ready."""

    def __init__(self, port, admin_port):
        self.port, self.admin_port = port, admin_port
        self.ready = asyncio.Event()
        # Open connections.
        self.connections = 0

    async def probe(self):
        """Reads `/readyz` again and again."""
        while True:
            try:
                is_ready = await asyncio.wait_for(self._is_ready(), PROBE_TIMEOUT_SECONDS)
            except (OSError, TimeoutError):
                is_ready = False
            if is_ready:
                self.ready.set()
            else:
                self.ready.clear()
            await asyncio.sleep(PROBE_SECONDS)

    async def _is_ready(self):
        return (await self._get("/readyz")).startswith("HTTP/1.1 200 ")

    async def watchers(self):
        """Returns the number of open watches."""
        return sum(int(count) for count in re.findall(r"^informerd_watchers{.*} (\d+)", await self._get("/metrics"), re.MULTILINE))

    async def _get(self, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin_port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            return (await reader.read()).decode()
        finally:
            writer.close()


class Side(asyncio.Protocol):
    """One end of a connection. What it receives is written to the other end, which is closed after it."""

    def __init__(self, other=None):
        self.other, self.transport = other, None
        self.has_ended = False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.other.transport.write(data)

    def eof_received(self):
        self.has_ended = True
        self.other.transport.write_eof()
        # True keeps it open, for the other direction.
        return not self.other.has_ended

    def pause_writing(self):
        self.other.transport.pause_reading()

    def resume_writing(self):
        self.other.transport.resume_reading()

    def connection_lost(self, error):
        if self.other and self.other.transport:
            self.other.transport.close()


class Client(Side):
    """The end of a client. It reads nothing until the server has accepted the connection."""

    def __init__(self, balancer):
        super().__init__()
        self.balancer = balancer

    def connection_made(self, transport):
        super().connection_made(transport)
        transport.pause_reading()
        self.connecting = asyncio.create_task(self._connect())

    async def _connect(self):
        replica = self.balancer.next()
        try:
            if replica is None:
                raise ConnectionRefusedError
            loop = asyncio.get_running_loop()
            _, self.other = await loop.create_connection(lambda: Backend(self, replica), "127.0.0.1", replica.port)
        except OSError:
            # As with a Service, the client has to try again.
            self.transport.abort()
            return
        if self.transport.is_closing():
            self.other.transport.close()
        else:
            self.transport.resume_reading()


class Backend(Side):
    """The end of a server."""

    def __init__(self, client, replica):
        super().__init__(client)
        self.replica = replica

    def connection_made(self, transport):
        super().connection_made(transport)
        self.replica.connections += 1

    def connection_lost(self, error):
        self.replica.connections -= 1
        super().connection_lost(error)


class Balancer:
    """The balancer. It goes round the ready replicas."""

    def __init__(self, *replicas):
        self.replicas = replicas
        self.turns = itertools.count()

    async def start(self):
        self.probes = [asyncio.create_task(each.probe()) for each in self.replicas]
        self.listener = await asyncio.get_running_loop().create_server(lambda: Client(self), "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]

    def next(self):
        """Returns the replica for a new connection, or None if none is ready."""
        ready = [each for each in self.replicas if each.ready.is_set()]
        return ready[next(self.turns) % len(ready)] if ready else None

    def stop(self):
        for probe in self.probes:
            probe.cancel()
        self.listener.close()
