-- Put one staged item on the queue: a delayed member, behind 14 digits of its due time if items are timed.
local function put(stream, delayed, item, timed, delay, now)
  local due = 0
  if timed then
    due = tonumber(string.sub(item, 1, 14))
    item = string.sub(item, 15)
  elseif delay > 0 then
    due = now + delay
  end
  if due > now then
    redis.call('ZADD', delayed, due, item)
  else
    push(stream, split_member(item))
  end
end
