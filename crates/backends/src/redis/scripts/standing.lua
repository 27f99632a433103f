-- standing: says whether this node serves under the crash-recovery guard; if not, begins its quarantine.
--
-- KEYS   the namespace record
-- ARGV   the server's identity, the quarantine in milliseconds, 1 if its memory outlives a restart or 0
-- Reply  {1 serves or 0 not, milliseconds of quarantine left, base, high, the longest quarantine asked for, when it was noticed}
--
-- Of the guard, the record holds:
--   identity     the server that was enrolled. Another server finds another's name here: it was restarted, or took its place
--   noticed, noticed_by   when somebody first found that this server does not serve, by its clock in milliseconds, and which
--                server that was; gone once it is enrolled
--   quarantine   the longest that anybody has asked for, in milliseconds
--
-- A record that is gone was flushed or evicted, or never was: the quarantine begins as well. So it does if the clock was set back
-- to before it began. Atomic because a script runs without any other command in between.
local function standing()
  local record, identity, asked_for = KEYS[1], ARGV[1], tonumber(ARGV[2])
  local fields = redis.call('HMGET', record, 'identity', 'noticed', 'noticed_by', 'quarantine', 'base', 'high')
  local base, high = tonumber(fields[5] or 0), tonumber(fields[6] or 0)
  local quarantine = tonumber(fields[4] or 0)
  if quarantine < asked_for then
    quarantine = asked_for
    redis.call('HSET', record, 'quarantine', quarantine)
  end
  -- Who may not see the server's name takes the record for its own, and leaves it as it is; whoever sees it writes it down.
  local blind = identity == 'unreadable'
  if fields[1] and not fields[2] and (fields[1] == identity or blind or fields[1] == 'unreadable') then
    if not blind and fields[1] ~= identity then redis.call('HSET', record, 'identity', identity) end
    return {1, 0, base, high, quarantine, 0}
  end
  -- It was enrolled, and whoever asks has looked: it keeps all that it says, so it is the same with another name. Not if it was in
  -- quarantine before it was restarted: it may have forgotten something then.
  if fields[1] and ARGV[3] == '1' and (not fields[2] or fields[3] == identity) and not blind then
    redis.call('HSET', record, 'identity', identity)
    redis.call('HDEL', record, 'noticed', 'noticed_by')
    return {1, 0, base, high, quarantine, 0}
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local noticed = tonumber(fields[2] or nil)
  local by_another = fields[3] ~= identity and not blind and fields[3] ~= 'unreadable'
  if not noticed or by_another or now < noticed then
    noticed = now
    redis.call('HSET', record, 'noticed', noticed, 'noticed_by', identity)
  elseif fields[3] == 'unreadable' and not blind then
    redis.call('HSET', record, 'noticed_by', identity)
  end
  return {0, math.max(0, noticed + quarantine - now), base, high, quarantine, noticed}
end
