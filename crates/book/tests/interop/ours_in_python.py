"""The example client, told by a test what to do: one command per line, one answer per line."""

import pathlib
import sqlite3
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
sys.dont_write_bytecode = True

from redlock_client import Redlock, write

client = Redlock(sys.argv[1:])
print("ready", flush=True)
for line in sys.stdin:
    verb, *words = line.split()
    if verb == "acquire":
        held = client.acquire(words[0], int(words[1]))
        print(f"{held[0]} {held[1]}" if held else "refused", flush=True)
    elif verb == "release":
        client.release(*words)
        print("released", flush=True)
    elif verb == "write":
        database = sqlite3.connect(words[0], timeout=30)
        print("applied" if write(database, int(words[1]), words[2], int(words[3])) else "stale", flush=True)
        database.close()
