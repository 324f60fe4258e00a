"""informerd for asyncio: `Informer` and `Client`; everything else is that of the package ``informerd``."""

from informerd.aio._client import Client
from informerd.aio._informer import Informer

__all__ = ["Client", "Informer"]
