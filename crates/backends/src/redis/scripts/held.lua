-- Says who is in the way of a resource.
--
-- Part of the scripts that take locks; atomic because they are.
local function held(position)
  local key = KEYS[position]
  local remaining = redis.call('PTTL', key)
  local holder = redis.pcall('GET', key)
  if type(holder) == 'string' then
    return {position, remaining, 'owner', string.sub(holder, 1, 64)}
  end
  return {position, remaining, 'foreign', redis.call('TYPE', key).ok}
end
