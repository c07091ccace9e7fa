-- The number of bytes of the length in a MessagePack header. cmsgpack does not know the binary types.
local length_bytes = {[0xD9] = 1, [0xDA] = 2, [0xDB] = 4, [0xC4] = 1, [0xC5] = 2, [0xC6] = 4}
-- Return the positions of the first byte of a string or of binary data, and of the byte after it.
local function find_content(d, position)
  local kind = string.byte(d, position)
  local first, length = position + 1 + (length_bytes[kind] or 0), 0
  for i = position + 1, first - 1 do length = length * 256 + string.byte(d, i) end
  return first, first + (length_bytes[kind] and length or kind - 0xA0)
end
-- Give a new job with an id from its caller a later creation time than the cancel request of an earlier job with this
-- id, so that workers do not drop it, and mark the request as superseded. The clocks of the producers do not decide,
-- because this runs in the script that adds the job. d is an envelope, or a delayed member whose envelope begins at
-- `position`. Returns d with the creation time.
local function supersede_cancel_request(requests, d, position)
  local id_first, id_end = find_content(d, position + 1)
  local job_id = string.sub(d, id_first, id_end - 1)
  local request = redis.pcall('HGET', requests, job_id)
  if type(request) ~= 'string' then return d end
  local kept, requested_at = string.match(request, '^((%d+) %d+%-%d+ %d+) [01]$')
  if not kept then return d end
  redis.pcall('HSET', requests, job_id, kept .. ' 1')
  position = select(2, find_content(d, id_end))
  local _, created_at = cmsgpack.unpack_limit(d, 1, position - 1)
  if created_at > tonumber(requested_at) then return d end
  local rest = string.sub(d, position + #cmsgpack.pack(created_at))
  return string.sub(d, 1, position - 1) .. cmsgpack.pack(tonumber(requested_at) + 1) .. rest
end
