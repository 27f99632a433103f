"""A plain Redlock client over redis-py, as many programs have one: SET NX PX, and compare-and-delete.

Reads one command per line, writes one line of JSON per command:

    acquire KEY VALUE TTL_MS    the nodes on which SET NX PX succeeded
    release KEY VALUE           the nodes on which the key held VALUE and was deleted
    holder KEY                  the value on each node
"""

import json
import sys

import redis

COMPARE_AND_DELETE = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
else
    return 0
end
"""

nodes = [redis.Redis(host="127.0.0.1", port=int(port), decode_responses=True) for port in sys.argv[1:]]
compare_and_delete = [node.register_script(COMPARE_AND_DELETE) for node in nodes]

for line in sys.stdin:
    verb, key, *rest = line.split()
    if verb == "acquire":
        value, ttl = rest
        answer = [n for n, node in enumerate(nodes) if node.set(key, value, nx=True, px=int(ttl))]
    elif verb == "release":
        (value,) = rest
        answer = [n for n, script in enumerate(compare_and_delete) if script(keys=[key], args=[value])]
    else:
        answer = [node.get(key) for node in nodes]
    print(json.dumps(answer), flush=True)
