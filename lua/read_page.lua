-- read_page: read entries of a stream, bounded by their number and by their size.
--
-- KEYS
--   1    stream, DLQ or events
-- ARGV
--   1    XRANGE or XREVRANGE
--   2    first id, as the command takes it
--   3    last id, as the command takes it
--   4    maximum number of entries
--   5    maximum size of the entries (bytes); the first entry may be larger
--   6    maximum size of a value in the reply (bytes, 0: no limit); longer ones are cut
-- RETURNS
--   1 if the range has more entries, otherwise 0; then per entry: its id, its fields, its size in bytes
local command, position, remaining = ARGV[1], ARGV[2], tonumber(ARGV[4])
local max_bytes, max_value = tonumber(ARGV[5]), tonumber(ARGV[6])
local reply, read_bytes, largest = {0}, 0, max_bytes
while remaining > 0 do
  -- Few entries at a time, and as many as fit if they are like the largest one so far.
  local count = math.max(1, math.min(16, remaining, math.floor((max_bytes - read_bytes) / largest)))
  local entries = redis.call(command, KEYS[1], position, ARGV[3], 'COUNT', count)
  if #reply == 1 then largest = 1 end
  for _, entry in ipairs(entries) do
    local size, fields = 0, entry[2]
    for i, value in ipairs(fields) do
      size = size + #value
      if max_value > 0 and #value > max_value then fields[i] = string.sub(value, 1, max_value) end
    end
    if #reply > 1 and read_bytes + size > max_bytes then
      reply[1] = 1
      return reply
    end
    read_bytes, largest = read_bytes + size, math.max(largest, size)
    reply[#reply + 1] = {entry[1], fields, size}
  end
  if #entries < count then return reply end
  remaining, position = remaining - #entries, '(' .. entries[#entries][1]
end
if #redis.call(command, KEYS[1], position, ARGV[3], 'COUNT', 1) == 1 then reply[1] = 1 end
return reply
