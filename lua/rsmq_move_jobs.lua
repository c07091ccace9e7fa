-- rsmq_move_jobs: move leased jobs to an RSMQ queue on the same server, each exactly once.
--
-- KEYS
--   1    stream
--   2    lease owners
--   3    zset
--   4    hash
--   5..  batch, done bitmap and dead bitmap of each batch part
-- ARGV
--   1    group
--   2    unit of the stored vt and delay (ms)
--   3    channel ('': none)
--   4..  per lease: entry id, consumer, deliveries, message id, message, length of the message (UTF-16 code units),
--        position of its batch in KEYS (0: none), part with creation time, index
-- RETURNS
--   a string with one character per lease: '1' moved, '0' the lease is not valid any more, 'x' too long for the queue
-- @include check_writes
-- @include check_ack_delete
-- @include check_batch_bits
-- @include check_rsmq_add
-- @include set_batch_bit
-- @include ack_delete
-- @include now_ms
-- @include lease_is_held
-- @include rsmq_config
-- @include rsmq_add
local config, problem = rsmq_config(KEYS[4], tonumber(ARGV[2]))
if not config then return problem end
for i = 4, #ARGV, 9 do check_batch_bits(ARGV[i + 6]) end
check_rsmq_add(KEYS[3], KEYS[4], ARGV[3])
check_ack_delete(KEYS[1])
local flags, visible_at = {}, now_ms() + config.delay
for i = 4, #ARGV, 9 do
  local flag = '0'
  if config.maxsize ~= -1 and tonumber(ARGV[i + 5]) > config.maxsize then
    flag = 'x'
  elseif lease_is_held(KEYS[1], ARGV[1], KEYS[2], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
    and ack_delete(KEYS[1], ARGV[1], {ARGV[i]})[1] then
    flag = '1'
    rsmq_add(KEYS[3], KEYS[4], ARGV[i + 3], ARGV[i + 4], visible_at, ARGV[3])
    set_batch_bit(ARGV[i + 6], ARGV[i + 7], ARGV[i + 8], false)
  end
  flags[#flags + 1] = flag
end
return table.concat(flags)
