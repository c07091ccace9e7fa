-- lease_create_queue: make a queue with its group, or agree with the one that is there.
-- KEYS  1 stream  2 config
-- ARGV  1 group  2 config ('': shared mode, which needs none)
-- returns 1
-- @include lease_require_exclusive
if ARGV[2] ~= '' then return lease_require_exclusive(KEYS[1], ARGV[1], KEYS[2], ARGV[2]) or 1 end
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM') -- BUSYGROUP: it is there
return 1
