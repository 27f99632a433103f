-- extend: sets the remaining time of resources, if the owner holds all of them.
--
-- KEYS   the lock keys
-- ARGV   owner, ttl in milliseconds
-- Reply  1 extended, 0 some are gone, -1 some are held by somebody else; in the latter cases nothing was changed
--
-- Atomic because a script runs without any other command in between. PEXPIRE sets, it never adds, and it does not bring
-- a key back.
local reply = 1
for i = 1, #KEYS do
  local holder = redis.pcall('GET', KEYS[i])
  if not holder then
    reply = math.min(reply, 0)
  elseif holder ~= ARGV[1] then
    return -1
  end
end
if reply == 1 then
  for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
end
return reply
