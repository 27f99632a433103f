-- Keeps the namespace record's marks ahead of every fence counter, so that counters may expire.
--
-- The record (one hash per node and prefix) holds:
--   high      at least as great as every counter ever set on this node; written ahead in steps of 2^32, so that it is
--             touched once in 71 minutes of microseconds and not once per grant
--   base      the floor of a resource without a counter: at least as great as every counter that has expired
--   previous, rolled   what high was at the last roll, and the server's time of it in milliseconds
--   identity, noticed, noticed_by, quarantine   the crash-recovery guard's: see standing.lua
--
-- A roll happens at most once in five days. Then base becomes what high was at the roll before, unless that is more than ten
-- days ago: then it becomes high itself. So base is never older than fifteen days, and a counter lives thirty days after it
-- was last set: a counter that is gone was last set before base was what it is, and base covers it. The fifteen days between
-- are the margin for a server's clock that is set back, since both follow it: a record from the future (more than the margin
-- is noticed as such, too) makes base high at once.
--
-- Part of the scripts that set counters. Atomic because they are: a script runs without any other command in between.
-- All numbers are below 2^53, where Lua's doubles are exact, and redis.call writes them with 17 digits.
local STEP = 4294967296
local COUNTER_MILLIS = 2592000000
local ROLL_MILLIS = 432000000

-- Returns base, after making sure that high covers the whole step of counter, and that of base + 1. Nothing, and does nothing,
-- if the guard is on and this node does not serve: it has lost its record, or has not been enrolled (again).
local function mark(record, counter)
  local fields = redis.call('HMGET', record, 'base', 'high', 'previous', 'rolled', 'identity', 'noticed')
  if GUARDED and (not fields[5] or fields[6]) then return nil end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local base = tonumber(fields[1] or 0)
  local high = tonumber(fields[2] or 0)
  local previous = tonumber(fields[3] or 0)
  local rolled = tonumber(fields[4] or now)
  local changed = not fields[4]
  local age = now - rolled
  if ROLL_MILLIS <= age or age < 0 then
    local covers = previous
    if 2 * ROLL_MILLIS <= age or age < 0 then covers = high end
    base, previous, rolled, changed = math.max(base, covers), high, now, true
  end
  local needed = math.max(counter, base + 1)
  if high <= needed then
    high, changed = (math.floor(needed / STEP) + 1) * STEP, true
  end
  if changed then
    redis.call('HSET', record, 'base', base, 'high', high, 'previous', previous, 'rolled', rolled)
  end
  return base
end

-- Whether the step that covered counter before also covers the greater one after.
local function covered(before, after)
  return math.floor(before / STEP) == math.floor(after / STEP)
end
