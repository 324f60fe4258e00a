"""Client of informerd: a local store that follows one resource of a server and cannot go silent, and the plain calls.

``Informer`` and ``Client`` are for threads; those of ``informerd.aio`` are for asyncio. ``informerd.v1`` has the
messages of the contract.
"""

from informerd._calls import GetResult, ListResult, Problem, Resource, Resources, SourceState
from informerd._client import Client
from informerd._core import Freshness, State
from informerd._errors import ContractError, Error, HandlerError, HandlerLag, IndexerError, NotFoundError
from informerd._informer import Informer
from informerd._objects import Cause, Event, EventType, Object
from informerd._options import Credentials, Index, Options, Policy, Selection, Shard, View
from informerd._until import Condition, UntilEvent
from informerd._version import __version__

__all__ = [
    "Cause",
    "Client",
    "Condition",
    "ContractError",
    "Credentials",
    "Error",
    "Event",
    "EventType",
    "Freshness",
    "GetResult",
    "HandlerError",
    "HandlerLag",
    "Index",
    "IndexerError",
    "Informer",
    "ListResult",
    "NotFoundError",
    "Object",
    "Options",
    "Policy",
    "Problem",
    "Resource",
    "Resources",
    "Selection",
    "Shard",
    "SourceState",
    "State",
    "UntilEvent",
    "View",
    "__version__",
]
