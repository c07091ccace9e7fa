-- Add a member to the delayed set and return it. A member that is already there would be merged with it, and one of two
-- identical jobs would be lost. Zero bytes after the envelope make the new member different; readers ignore them.
local function add_delayed(delayed, due, member)
  while redis.call('ZADD', delayed, 'NX', due, member) == 0 do member = member .. '\0' end
  return member
end
