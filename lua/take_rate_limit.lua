-- take_rate_limit: reserve the next times that a rate limit allows. A reservation costs the weight of each rate; at most burst
-- of them may come before their regular time.
--
-- KEYS
--   1    rate limit
-- ARGV
--   1    longest wait (ms, -1: no limit)
--   2    number of reservations
--   3..  per rate: limit, period (ms), burst, weight
-- RETURNS
--   {wait of the first reservation that was refused (us, -1: none), wait of each reservation (us)}
-- @include check_writes
check_writes(KEYS[1], 'hash', 'HSET', 'HGET', 'PEXPIRE')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local latest = now + tonumber(ARGV[1]) * 1000
-- The state of a rate is the time at which it allows the next reservation, without its burst.
local rates, changed, reply = {}, {}, {-1}
for i = 3, #ARGV, 4 do
  local interval, number = ARGV[i + 1] * 1000 / ARGV[i], tostring(#rates + 1)
  rates[#rates + 1] = {
    number = number, next = tonumber(redis.call('HGET', KEYS[1], number)) or 0,
    tolerance = (ARGV[i + 2] - 1) * interval, cost = ARGV[i + 3] * interval,
  }
end
local paused_until = tonumber(redis.call('HGET', KEYS[1], 'paused_until')) or 0
for _ = 1, tonumber(ARGV[2]) do
  local at = math.max(now, paused_until)
  for _, rate in ipairs(rates) do at = math.max(at, rate.next - rate.tolerance) end
  if latest >= now and at > latest then
    reply[1] = math.ceil(at - now)
    break
  end
  for _, rate in ipairs(rates) do rate.next = math.max(rate.next, at) + rate.cost end
  reply[#reply + 1] = math.ceil(at - now)
end
if #reply == 1 then return reply end
local expires = paused_until
for _, rate in ipairs(rates) do
  changed[#changed + 1] = rate.number
  changed[#changed + 1] = string.format('%.0f', math.ceil(rate.next))
  expires = math.max(expires, rate.next)
end
redis.call('HSET', KEYS[1], unpack(changed))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil((expires - now) / 1000) + 1000))
return reply
