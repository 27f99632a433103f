-- The crash-recovery guard is off: whatever the record says of it, this node votes.
local GUARDED = false
