-- Add one staged item to the queue. An item is a delayed member. If per_row_run_at is true, the member is preceded by its
-- due time in 14 decimal digits. Requires add_delayed, add_entry and split_delayed_member.
local function add_staged_item(stream, delayed, item, per_row_run_at, delay, now)
  local due = 0
  if per_row_run_at then
    due = tonumber(string.sub(item, 1, 14))
    item = string.sub(item, 15)
  elseif delay > 0 then
    due = now + delay
  end
  if due > now then
    add_delayed(delayed, due, item)
  else
    add_entry(stream, split_delayed_member(item))
  end
end
