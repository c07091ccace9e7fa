-- rsmq_move_jobs: move leased jobs to an RSMQ queue on the same server, each exactly once.
-- KEYS  1 stream  2 owners  3 zset  4 hash  5.. done bits
-- ARGV  1 group  2 ms in one stored vt or delay  3 channel ('': none)  4 life of the bits (ms)  5.. per lease: entry id, consumer, count, message id, message, its length (UTF-16 units), number of its bits in KEYS (0: none), bit
-- returns a string with one sign a lease: 1 moved, 0 not held any more, x too long for the queue
-- @include ack_delete
-- @include clock
-- @include lease_is_held
-- @include rsmq_config
-- @include rsmq_add
local config, problem = rsmq_config(KEYS[4], tonumber(ARGV[2]))
if not config then return problem end
redis.call('ZCARD', KEYS[3]) -- refuses a key of another type before anything is settled
local signs, due = {}, now_ms() + config.delay
for i = 5, #ARGV, 8 do
  local sign = '0'
  if config.maxsize ~= -1 and tonumber(ARGV[i + 5]) > config.maxsize then
    sign = 'x'
  elseif lease_is_held(KEYS[1], ARGV[1], KEYS[2], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
    and ack_delete(KEYS[1], ARGV[1], {ARGV[i]})[1] then
    sign = '1'
    rsmq_add(KEYS[3], KEYS[4], ARGV[i + 3], ARGV[i + 4], due, ARGV[3])
    if ARGV[i + 6] ~= '0' then
      local bits = KEYS[tonumber(ARGV[i + 6])]
      redis.call('SETBIT', bits, ARGV[i + 7], 1)
      redis.call('PEXPIRE', bits, ARGV[4])
    end
  end
  signs[#signs + 1] = sign
end
return table.concat(signs)
