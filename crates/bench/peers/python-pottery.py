"""pottery's Redlock, for the load comparison."""

import sys
from importlib.metadata import version

from common import serve

try:
    from pottery import Redlock
    from redis import Redis
except ImportError as error:
    print(f"absent the libraries are not installed ({error}); run cargo xtask bench --install-peers", flush=True)
    sys.exit(0)

MASTERS = {Redis.from_url(url) for url in sys.argv[1].split(",")}


class Lock:
    def __init__(self, resource, ttl):
        self.lock = Redlock(key=resource, masters=MASTERS, auto_release_time=ttl / 1000)

    def take(self, seconds):
        return self.lock.acquire(timeout=seconds) if 0 < seconds else self.lock.acquire(blocking=False)

    def give(self):
        self.lock.release()


serve(version("pottery"), Lock)
