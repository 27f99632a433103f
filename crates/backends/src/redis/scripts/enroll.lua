-- enroll: takes this node into service under the crash-recovery guard, if its quarantine is over.
--
-- KEYS   the namespace record
-- ARGV   the server's identity, the quarantine in milliseconds, 1 if its memory outlives a restart or 0, base, 1 to take it
--        at once or 0, when the loss was noticed after which all this was found out
-- Reply  as standing's
--
-- Begins with what standing does, whose text stands before this one as a function. Base and high only grow. Atomic because a
-- script runs without any other command in between: a node that has lost its memory since then, once more, is not enrolled.
local found = standing()
local record, base = KEYS[1], math.max(found[3], tonumber(ARGV[4]))
local serves, ready = found[1] == 1, found[2] == 0 or ARGV[5] == '1'
if not serves and (not ready or tonumber(ARGV[6]) ~= found[6]) then return found end
-- What the node remembers of itself counts, too: its log may have been cut off, and its counters with it.
if not serves then base = math.max(base, found[4]) end
local high = found[4]
if high <= base then high = (math.floor((base + 1) / STEP) + 1) * STEP end
redis.call('HSET', record, 'identity', ARGV[1], 'base', base, 'high', high)
redis.call('HDEL', record, 'noticed', 'noticed_by')
return {1, 0, base, high, found[5], 0}
