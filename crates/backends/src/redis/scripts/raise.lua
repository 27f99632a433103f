-- raise: sets the fence counters of resources to at least a value, if the owner holds all of the resources.
--
-- KEYS   n lock keys, n counter keys in the same order, the namespace record
-- ARGV   owner, value
-- Reply  the greatest counter afterwards (integer), or nil if the owner does not hold all resources, or
--        the guard is on and this node does not serve
--
-- Atomic because a script runs without any other command in between: the owner check and the raise cannot be separated.
-- Without the owner check two grants can carry one token. Never lowers a counter.
local n = (#KEYS - 1) / 2
local owner, to = ARGV[1], tonumber(ARGV[2])
for i = 1, n do
  if redis.pcall('GET', KEYS[i]) ~= owner then return false end
end
local record = KEYS[2 * n + 1]
local greatest = to
for i = 1, n do
  local old = tonumber(redis.call('GET', KEYS[n + i]) or nil)
  local stood = old or mark(record, to)
  if not stood then return false end
  local new = math.max(to, stood)
  if new ~= old then
    if not covered(old or to, new) and not mark(record, new) then return false end
    redis.call('SET', KEYS[n + i], new, 'PX', COUNTER_MILLIS)
  end
  greatest = math.max(greatest, new)
end
return greatest
