-- release: frees those of the resources that the owner holds.
--
-- KEYS   the lock keys
-- ARGV   owner
-- Reply  1 the owner held all of them, 0 some were gone, -1 some are held by somebody else
--
-- Atomic because a script runs without any other command in between: what is compared is what is deleted. Counters are
-- not touched, they outlive the lock.
local reply = 1
for i = 1, #KEYS do
  local holder = redis.pcall('GET', KEYS[i])
  if holder == ARGV[1] then
    redis.call('DEL', KEYS[i])
  elseif holder then
    reply = -1
  else
    reply = math.min(reply, 0)
  end
end
return reply
