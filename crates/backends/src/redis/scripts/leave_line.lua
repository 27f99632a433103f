-- leave line: takes a waiter out of the lines of resources, and passes on a call that may have come for it.
--
-- KEYS   n lock keys, n line keys in the same order
-- ARGV   waiter
-- Reply  1
--
-- Atomic because a script runs without any other command in between: a resource that is found free stays free until its
-- next waiter is called.
local n = #KEYS / 2
for i = 1, n do
  redis.call('LREM', KEYS[n + i], 1, ARGV[1])
  if redis.call('EXISTS', KEYS[i]) == 0 then call_first(KEYS[n + i]) end
end
return 1
