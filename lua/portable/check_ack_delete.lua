-- Raise an error if this user may not run the commands of ack_delete. Requires check_writes.
local function check_ack_delete(stream)
  check_writes(stream, nil, 'XACK', 'XDEL')
end
