-- acquire: takes all resources for an owner if every one of them is free, and sets their fence counters.
--
-- KEYS   n lock keys, n counter keys in the same order, the namespace record
-- ARGV   owner, ttl in milliseconds, floor
-- Reply  the new counter (integer), or {position of the first resource that is not free, its remaining milliseconds,
--        'owner' or 'foreign', the owner's value or the foreign key's type}; {0, -2, 'quarantine', ''} if the guard is on
--        and this node does not serve: then nothing is taken
--
-- Atomic because a script runs without any other command in between: all lock keys are looked at before the first is
-- written. The lock key is a plain string written with NX PX, what every other Redlock client writes, so they exclude us
-- and we them. The usual grant, of one resource with a counter, costs two calls: SET NX PX, SET GET PX.
--
-- Ends the script that acquires in line, too; there n line keys follow, and more arguments.
local n = (#KEYS - 1) / (ARGV[4] and 3 or 2)
local owner, ttl, counter = ARGV[1], ARGV[2], ARGV[3] + 1

if n == 1 then
  if not redis.call('SET', KEYS[1], owner, 'NX', 'PX', ttl) then return held(1) end
else
  for i = 1, n do
    if redis.call('EXISTS', KEYS[i]) == 1 then return held(i) end
  end
  for i = 1, n do redis.call('SET', KEYS[i], owner, 'NX', 'PX', ttl) end
end

-- No counter is ever lower than it was, not even if a later call of this script fails.
local record = KEYS[2 * n + 1]
local final = counter
local covered_at = {}
local function give_back()
  for i = 1, n do redis.call('DEL', KEYS[i]) end
  return {0, -2, 'quarantine', ''}
end
for i = 1, n do
  local old = tonumber(redis.call('SET', KEYS[n + i], counter, 'GET', 'PX', COUNTER_MILLIS) or nil)
  if not old then
    local base = mark(record, counter)
    if not base then
      redis.call('DEL', KEYS[n + i])
      return give_back()
    end
    final = math.max(final, base + 1)
  elseif counter <= old then
    redis.call('SET', KEYS[n + i], old + 1, 'PX', COUNTER_MILLIS)
    final = math.max(final, old + 1)
  end
  covered_at[i] = old or final
end
for i = 1, n do
  if not covered(covered_at[i], final) then
    if not mark(record, final) then return give_back() end
    break
  end
end
if n ~= 1 or final ~= counter then
  for i = 1, n do redis.call('SET', KEYS[n + i], final, 'PX', COUNTER_MILLIS) end
end
return final
