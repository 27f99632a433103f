"""A client in another language: it locks with ours, mints the same tokens, and writes through the same fence.

It sends the Lua scripts of crates/backends/src/redis/scripts and the SQL of docs/fencing.md; docs/wire-format.md is the
text to read beside it. Left out: waiting in line, renewal, and whatever else a lock can do without.

    python3 redlock_client.py jobs/backup redis://127.0.0.1:7601 redis://127.0.0.1:7602 redis://127.0.0.1:7603
"""

import pathlib, statistics, sys, time, uuid
from concurrent.futures import ThreadPoolExecutor

import redis

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "backends/src/redis/scripts"


def script(*parts):
    return "".join((SCRIPTS / f"{part}.lua").read_text() for part in parts)


ACQUIRE, RAISE = script("unguarded", "record", "held", "acquire"), script("unguarded", "record", "raise")
RELEASE = script("line", "release")


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps, and is never set


class Redlock:
    def __init__(self, urls, node_timeout=1.0):
        self.nodes = [redis.Redis.from_url(url, socket_timeout=node_timeout) for url in urls]
        self.quorum = len(self.nodes) // 2 + 1
        self.pool = ThreadPoolExecutor(len(self.nodes))
        times = [s * 1_000_000 + us for s, us in filter(None, self.ask(lambda node: node.time()))]
        self.calendar = statistics.median_low(times) - int(now() * 1_000_000)  # of the nodes, not of this machine

    def ask(self, question):
        """All nodes at once. A node that does not answer has said nothing: None, which is neither yes nor no."""
        def one(node):
            try:
                return question(node)
            except redis.RedisError:
                return None
        return list(self.pool.map(one, self.nodes))

    def acquire(self, name, ttl_ms):
        """(owner, token, the moment until which it is good), or None."""
        lock, owner = f"lock:{name}", uuid.uuid4().hex
        until = now() + (ttl_ms - ttl_ms * 0.01 - 2) / 1000  # before the first question is asked
        keys = [lock, f"lock:~fence:{{{lock}}}", "lock:~namespace"]  # for names without braces
        floor = self.calendar + int(now() * 1_000_000)
        answers = self.ask(lambda node: node.eval(ACQUIRE, 3, *keys, owner, ttl_ms, floor))
        while (granted := [answer for answer in answers if isinstance(answer, int)])[self.quorum - 1:]:
            token = max(granted)
            if self.quorum <= granted.count(token) and now() < until:
                return owner, token, until  # a quorum stands at exactly this number
            if until <= now():
                break
            answers = self.ask(lambda node: node.eval(RAISE, 3, *keys, owner, token))
        self.release(name, owner)
        return None

    def release(self, name, owner):
        keys = [f"lock:{name}", f"lock:~line:{{lock:{name}}}"]
        self.ask(lambda node: node.eval(RELEASE, 2, *keys, owner))


def write(database, order, status, token):
    """Whether the write was let through: the database has seen no greater token for this row."""
    fenced = "UPDATE orders SET status = ?, fence_token = ? WHERE id = ? AND fence_token < ?"
    with database:
        return database.execute(fenced, (status, token, order, token)).rowcount == 1


if __name__ == "__main__":
    client = Redlock(sys.argv[2:])
    held = client.acquire(sys.argv[1], ttl_ms=10_000) or sys.exit("held by somebody else")
    print(f"granted, token {held[1]}, good for {held[2] - now():.1f} s")
    client.release(sys.argv[1], held[0])
