-- The crash-recovery guard is on: no grant without a record that says that this node serves.
local GUARDED = true
