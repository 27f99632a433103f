-- extend: sets the remaining time of resources, for each of one or more owners who hold all of theirs.
--
-- KEYS   the lock keys of the first owner, then those of the second, and so on
-- ARGV   for each owner: how many of the keys are its own, its value, the ttl in milliseconds
-- Reply  for each owner: 1 extended, 0 some are gone, -1 some are held by somebody else; in the latter cases nothing of
--        that owner's was changed
--
-- Atomic because a script runs without any other command in between. PEXPIRE sets, it never adds, and it does not bring
-- a key back.
local replies = {}
local first = 1
for i = 1, #ARGV, 3 do
  local last = first + ARGV[i] - 1
  local reply = 1
  for key = first, last do
    local holder = redis.pcall('GET', KEYS[key])
    if not holder then
      reply = math.min(reply, 0)
    elseif holder ~= ARGV[i + 1] then
      reply = -1
    end
  end
  if reply == 1 then
    for key = first, last do redis.call('PEXPIRE', KEYS[key], ARGV[i + 2]) end
  end
  replies[#replies + 1] = reply
  first = last + 1
end
return replies
