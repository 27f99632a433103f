-- Calls those who wait in a line. A line is a list of waiters, each of them 'ticket@channel', first come first.
--
-- Whoever is called stays in line until it has the lock or leaves: while it is on its way, others see that somebody comes
-- first. Whoever does not hear is taken out: PUBLISH says how many heard it. Calling is a courtesy, so a user without the
-- rights for it calls nobody, and nothing else fails.
--
-- Part of other scripts; atomic because they are.
local function call_first(line)
  for _ = 1, 128 do
    local waiter = redis.pcall('LINDEX', line, 0)
    if type(waiter) ~= 'string' then return false end
    local ticket, channel = string.match(waiter, '^(%d+)@(.*)$')
    local heard = ticket and redis.pcall('PUBLISH', channel, ticket) or 0
    if type(heard) == 'table' then return false end
    if heard ~= 0 then return waiter end
    redis.call('LPOP', line)
  end
  return false
end
