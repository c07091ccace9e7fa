#!lua flags=allow-oom
-- ack: take finished entries off the stream.
-- KEYS  1 stream
-- ARGV  1 group  2.. entry ids
-- returns for each entry 1 settled, 0 someone else settled it first
-- @include ack_delete
local ids, answer = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
local gone = ack_delete(KEYS[1], ARGV[1], ids)
for j = 1, #ids do answer[j] = gone[j] and 1 or 0 end
return answer
