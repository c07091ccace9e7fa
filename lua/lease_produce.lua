-- lease_produce: append messages if the tail is where the caller saw it; of one client each sequence number only once.
-- KEYS  1 stream  2 once  3 producers  4 seen
-- ARGV  1 life of once (ms)  2 expected tail ('': any)  3 client ('': none)  4 strict (1: a used number refuses all)  5 max length (0: none)  6 clients forgotten after (ms)  7.. per message: sequence number, d, n
-- returns for each message its entry id, or '' where its number was used before
-- @include clock
-- @include add_entry
-- @include check_max_len
local said = redis.call('LRANGE', KEYS[2], 0, -1)
if #said > 0 then return said end
if ARGV[2] ~= '' then
  local tail = '0-0'
  if redis.call('EXISTS', KEYS[1]) == 1 then
    local info = redis.call('XINFO', 'STREAM', KEYS[1])
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then tail = info[i + 1] end
    end
  end
  if tail ~= ARGV[2] then return redis.error_reply('CHASQUILEASE tail ' .. tail) end
end
-- As text: Lua's numbers are not exact above 2^53.
local function above(a, b) return #a > #b or (#a == #b and a > b) end
local client, now, fresh, count = ARGV[3], now_ms(), {}, 0
local last = client ~= '' and redis.call('HGET', KEYS[3], client) or ''
for i = 7, #ARGV, 3 do
  local new = client == '' or above(ARGV[i], last)
  if not new and ARGV[4] == '1' then return redis.error_reply('CHASQUILEASE sequence ' .. last) end
  if new then last, count = ARGV[i], count + 1 end
  fresh[#fresh + 1] = new
end
local full = room(KEYS[1], tonumber(ARGV[5]), count)
if full then return full end
local answer = {}
for j = 1, #fresh do
  local i = j * 3 + 4
  answer[j] = fresh[j] and push(KEYS[1], ARGV[i + 1], ARGV[i + 2]) or ''
  redis.call('RPUSH', KEYS[2], answer[j])
end
if #answer > 0 then redis.call('PEXPIRE', KEYS[2], ARGV[1]) end
if client ~= '' and count > 0 then
  redis.call('HSET', KEYS[3], client, last)
  redis.call('ZADD', KEYS[4], now, client)
  local old = string.format('%.0f', now - tonumber(ARGV[6]))
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', old, 'LIMIT', 0, 10)) do
    redis.call('ZREM', KEYS[4], gone)
    redis.call('HDEL', KEYS[3], gone)
  end
end
return answer
