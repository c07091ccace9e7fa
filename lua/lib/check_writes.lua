-- acl_check_cmd requires a complete command. The arguments after the key have no meaning here; these commands take a fixed
-- number of them (or further keys), the others accept four.
local argument_counts = {
  DEL = 0, GET = 0, GETBIT = 1, HEXISTS = 1, HGET = 1, HGETALL = 0, HINCRBY = 2, HLEN = 0, HSETNX = 2, INCR = 0,
  PERSIST = 0, PEXPIRETIME = 0, PTTL = 0, PUBLISH = 1, SETBIT = 2, UNLINK = 0, XREADGROUP = 1, ['XGROUP|DESTROY'] = 1,
  ['XINFO|STREAM'] = 0, ZCARD = 0, ZCOUNT = 2, ZREMRANGEBYRANK = 2, ZREMRANGEBYSCORE = 2, ZSCORE = 1,
}
-- Commands whose key is not the first argument.
local words_before_key = {
  XREADGROUP = {'XREADGROUP', 'GROUP', 1, 1, 'STREAMS'}, ['XGROUP|CREATE'] = {'XGROUP', 'CREATE'},
  ['XGROUP|DESTROY'] = {'XGROUP', 'DESTROY'}, ['XINFO|STREAM'] = {'XINFO', 'STREAM'},
}
-- Raise an error if this user may not run one of the commands on the key, or if the key has another type.
-- key_type is 'string', 'list', 'set', 'zset', 'hash' or 'stream'; nil: do not check the type. A missing key has every type.
-- Redis does not roll back. A script therefore calls this before its first write, for every other write that must not fail.
local function check_writes(key, key_type, ...)
  for i = 1, select('#', ...) do
    local command = select(i, ...)
    local words = {unpack(words_before_key[command] or {command})}
    words[#words + 1] = key
    for j = 1, argument_counts[command] or 4 do words[#words + 1] = 1 end
    if not redis.acl_check_cmd(unpack(words)) then
      error(redis.error_reply("NOPERM this user has no permissions to run the '" .. string.lower(command)
        .. "' command on the key " .. key))
    end
  end
  if not key_type then return end
  local found = redis.call('TYPE', key).ok
  if found ~= key_type and found ~= 'none' then
    error(redis.error_reply('WRONGTYPE the key ' .. key .. ' is a ' .. found .. ', not a ' .. key_type))
  end
end
