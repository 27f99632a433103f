-- acquire in line: as acquire, for a waiter; whoever has to wait stands in line from the same moment.
--
-- KEYS   n lock keys, n counter keys in the same order, the namespace record, n line keys in the same order
-- ARGV   owner, ttl in milliseconds, floor, waiter, manner: 'yield' those before it come first, 'called' it takes what is
--        free, 'overtake' the same, and those before it leave the line. It stays in line itself until it leaves
-- Reply  as acquire's; besides, {position, -2, 'line', ''} if others who wait for that resource come first
--
-- Atomic because a script runs without any other command in between: no release falls between finding the lock held and
-- standing in line for it. What is in the way is found before anything is written; the rest is acquire's.
local n = (#KEYS - 1) / 3
local waiter, manner = ARGV[4], ARGV[5]
for i = 1, n do
  local line = KEYS[2 * n + 1 + i]
  local in_the_way
  if redis.call('EXISTS', KEYS[i]) == 1 then
    in_the_way = held(i)
  elseif manner == 'yield' then
    local first = call_first(line)
    if first and first ~= waiter then in_the_way = {i, -2, 'line', ''} end
  end
  if in_the_way then
    if not redis.call('LPOS', line, waiter) and 10000 < redis.call('RPUSH', line, waiter) then
      redis.call('RPOP', line)
    end
    -- Each of those who wait asks again long before that, so it ends a line that nobody stands in any more.
    redis.call('PEXPIRE', line, 60000)
    -- One that waits for this resource cannot take the others: whoever waits for them is not to wait for it.
    for other = 1, n do
      local left = other ~= i and redis.call('LREM', KEYS[2 * n + 1 + other], 1, waiter) == 1
      if left and redis.call('EXISTS', KEYS[other]) == 0 then call_first(KEYS[2 * n + 1 + other]) end
    end
    return in_the_way
  end
end
for i = 1, manner == 'overtake' and n or 0 do
  local line = KEYS[2 * n + 1 + i]
  local position = redis.call('LPOS', line, waiter)
  if position then redis.call('LTRIM', line, position, -1) end
end
