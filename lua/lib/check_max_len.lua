-- Return an error reply if new_jobs more entries would exceed max_len (0: no limit), otherwise nil.
-- Scripts call this before their first write, so that a full queue never accepts only a part of a request.
local function check_max_len(stream, max_len, new_jobs)
  if max_len > 0 and redis.call('XLEN', stream) + new_jobs > max_len then
    return redis.error_reply('CHASQUIFULL ' .. max_len)
  end
end
