-- release: frees those of the resources that the owner holds, and calls the first who waits for each that is free then.
--
-- KEYS   n lock keys, n line keys in the same order
-- ARGV   owner
-- Reply  1 the owner held all of them, 2 the same and somebody was called, 0 some were gone, -1 some are held by somebody
--        else
--
-- Atomic because a script runs without any other command in between: what is compared is what is deleted. Counters are
-- not touched, they outlive the lock.
local n = #KEYS / 2
local reply = 1
local called = false
for i = 1, n do
  local holder = redis.pcall('GET', KEYS[i])
  if holder == ARGV[1] then
    redis.call('DEL', KEYS[i])
  elseif holder then
    reply = -1
  else
    reply = math.min(reply, 0)
  end
  if (not holder or holder == ARGV[1]) and call_first(KEYS[n + i]) then called = true end
end
if reply == 1 and called then return 2 end
return reply
