"""The lines that the load comparison and a peer exchange (src/load/peer.rs), for peers in Python.

A peer gives a function that makes a lock for a name and a ttl in milliseconds: an object with `take(seconds)`, which waits
so long at most and says whether it got the lock, and `give()`.
"""

import sys
import threading
import time


def alone(make, resource, ttl, lead_in, rounds, limit):
    end = time.monotonic_ns() + limit * 1_000_000
    times = []
    for number in range(lead_in + rounds):
        started = time.monotonic_ns()
        if 0 < number and end < started:
            break
        result = "x"
        try:
            lock = make(resource, ttl)
            if lock.take(0):
                lock.give()
                result = str(time.monotonic_ns() - started)
        except Exception:
            pass
        if lead_in <= number or end < time.monotonic_ns():
            times.append(result)
    print("times", *times, flush=True)


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def many(make, resource, ttl, tasks, millis):
    end = time.monotonic_ns() + millis * 1_000_000
    done, failed = [0] * tasks, [0] * tasks

    def work(task):
        while time.monotonic_ns() < end:
            try:
                lock = make(f"{resource}/{task}", ttl)
                if lock.take(0):
                    lock.give()
                    done[task] += 1
                else:
                    failed[task] += 1
            except Exception:
                failed[task] += 1

    in_threads(tasks, work)
    print("rounds", sum(done), sum(failed), flush=True)


def crowd(make, resource, ttl, first_task, tasks, hold_us, grants, start, end):
    lines, failed = [], [0] * tasks

    def work(task):
        time.sleep(max(0, start - time.monotonic_ns()) / 1e9)
        for had in range(grants):
            asked = time.monotonic_ns()
            lock = make(resource, ttl)
            got = False
            while not got:
                left = end - time.monotonic_ns()
                if left <= 0:
                    failed[task] = grants - had
                    return
                try:
                    got = lock.take(left / 1e9)
                except Exception:
                    pass
            granted = time.monotonic_ns()
            time.sleep(hold_us / 1e6)
            released = time.monotonic_ns()
            try:
                lock.give()
            except Exception:
                pass
            lines.append(f"grant {first_task + task} {asked} {granted} {released}")

    in_threads(tasks, work)
    lines.append(f"done {sum(failed)}")
    print("\n".join(lines), flush=True)


def serve(version, make):
    print("ready", version, flush=True)
    for line in sys.stdin:
        verb, resource, *numbers = line.split()
        {"alone": alone, "many": many, "crowd": crowd}[verb](make, resource, *map(int, numbers))
