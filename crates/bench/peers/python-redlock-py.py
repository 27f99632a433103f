"""redlock-py, for the load comparison."""

import sys
from importlib.metadata import version

from common import serve

try:
    from redis import Redis
    from redlock import Redlock
except ImportError as error:
    print(f"absent the libraries are not installed ({error}); run cargo xtask bench --install-peers", flush=True)
    sys.exit(0)

MANAGER = Redlock([Redis.from_url(url) for url in sys.argv[1].split(",")])


class Lock:
    def __init__(self, resource, ttl):
        self.resource, self.ttl, self.held = resource, ttl, None

    def take(self, seconds):
        # Tries three times, with pauses of its own; the caller comes again while there is time.
        self.held = MANAGER.lock(self.resource, self.ttl)
        return bool(self.held)

    def give(self):
        MANAGER.unlock(self.held)


serve(version("redlock-py"), Lock)
